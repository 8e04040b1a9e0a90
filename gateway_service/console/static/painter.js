// Paints at most once a frame, and never for more than a fifth of the time: so a long text that grows stays cheap.

const PAUSE = 4; // times as long as the last painting took

/** A function that asks for painting soon; its `now` paints at once. */
export function paintedBy(paint) {
  let [asked, notBefore] = [false, 0];
  const frame = (time) => {
    if (!asked) return;
    if (time < notBefore) requestAnimationFrame(frame);
    else soon.now();
  };
  const soon = () => {
    if (!asked) requestAnimationFrame(frame);
    asked = true;
  };
  soon.now = () => {
    asked = false;
    const began = performance.now();
    paint();
    const ended = performance.now();
    notBefore = ended + PAUSE * (ended - began);
  };
  return soon;
}
