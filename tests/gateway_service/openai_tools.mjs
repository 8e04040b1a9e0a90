// Calls a tool through the gateway at argv[2] with OpenAI's own JavaScript client and the request argv[3].
import OpenAI from "openai";

const [, , baseURL, request] = process.argv;
const client = new OpenAI({ apiKey: "none", baseURL, maxRetries: 0 });
const asked = JSON.parse(request);
const functions = (message) => message.tool_calls.map((call) => call.function);

const whole = (await client.chat.completions.create(asked)).choices[0].message;
const streamed = await client.chat.completions.stream(asked).finalMessage();
let ran = null;
const forecast = asked.tools[0].function;
const runner = client.chat.completions.runTools({
  ...asked,
  tools: [{ type: "function", function: { ...forecast, parse: JSON.parse, function: (given) => (ran ??= given) } }],
});
await runner.done().catch((error) => {
  if (ran === null) throw error;
});
const plain = ({ name, arguments: text }) => ({ arguments: text, name });
console.log(JSON.stringify({ whole: functions(whole).map(plain), streamed: functions(streamed).map(plain), ran }));
