"""Texts of several kinds, as real tokenizers split them very differently."""

PROSE = """\
The lighthouse keeper had not spoken to anyone for eleven days when the boat finally came round the \
headland. "You're late," he said, though nobody had promised a date. The captain's answer was lost in the \
wind; it didn't matter. They carried the crates up the path: flour, paraffin, two newspapers from the \
previous month, and a letter that smelled faintly of oranges. He put it in his pocket unread.

Later, when the lamp was lit and the international shipping forecast had been copied into the log, he sat \
down at the table. Responsibility, his grandfather used to say, is mostly a matter of remembering what \
everybody else has forgotten. The handwriting was unfamiliar. Outside, the sea went on with its \
unhurried, incomprehensible arithmetic.
"""
CODE = '''from collections import defaultdict


class EventQueue:
    """Events in order of their time."""

    def __init__(self, capacity: int = 1024):
        self._events: list[tuple[float, str]] = []
        self._handlers = defaultdict(list)
        self.capacity = capacity

    def push(self, time: float, name: str) -> bool:
        if len(self._events) >= self.capacity:
            raise OverflowError(f"more than {self.capacity} events")
        for index, (other, _) in enumerate(self._events):
            if other > time:
                self._events.insert(index, (time, name))
                return True
        self._events.append((time, name))
        return False

    def run(self):
        while self._events:
            time, name = self._events.pop(0)
            for handler in self._handlers[name]:
                handler(time)  # may push further events


if __name__ == "__main__":
    queue = EventQueue()
    queue.push(0.5, "start")
    print(queue.run(), [x ** 2 for x in range(10)], {"key": None})
'''
ASIAN = """人工智能是计算机科学的一个分支，它试图了解智能的实质，并生产出一种新的能以与人类智能相似的\
方式做出反应的智能机器。该领域的研究包括机器人、语言识别、图像识别、自然语言处理和专家系统等。2024年，大型语言模型的推理速度提高了约37%。
東京は日本の首都であり、世界最大の都市圏の一つです。毎年、多くの観光客が浅草や渋谷を訪れます。「おはようございます」と彼女は言った。
서울은 대한민국의 수도이며, 한강을 끼고 있는 도시입니다. 많은 사람들이 이곳에서 살고 일합니다.
"""
FIGURES = """# Results

| model | tokens/s | ratio |
|---|---:|---:|
| small-135M | 1234.5 | 2.14 |
| large | 87.25 | 1.00 |

```json
{
  "name": "draft",
  "values": [1, 22, 333, 4444],
  "nested": {"a": null, "b": true}
}
```

It's 12:30 on 2026-11-28; we'll see: naïve café, 3.14159, ¿qué?\t\tTabs



End… 🐍🙂  done
"""
TEXTS = {"prose": PROSE, "code": CODE, "asian": ASIAN, "figures": FIGURES}
