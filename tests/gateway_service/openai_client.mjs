// Calls the gateway at argv[2] with OpenAI's own JavaScript client and the prompt argv[3]; prints the results as JSON.
import OpenAI from "openai";

const [, , baseURL, prompt] = process.argv;
const client = new OpenAI({ apiKey: "none", baseURL, maxRetries: 0 });
const model = "target";
const messages = [{ role: "user", content: "write a function" }];
const asked = { model, max_tokens: 20, seed: 5 };

const models = (await client.models.list()).data.map((each) => each.id);
const completion = await client.completions.create({ ...asked, prompt });
let streamed = "";
for await (const chunk of await client.completions.create({ ...asked, prompt, stream: true })) {
  streamed += chunk.choices[0].text;
}
const chat = await client.chat.completions.create({ ...asked, messages });
let chatStreamed = "";
const stream = client.chat.completions.stream({ ...asked, messages, stream_options: { include_usage: true } });
for await (const chunk of stream) {
  chatStreamed += chunk.choices[0]?.delta.content ?? "";
}
const { usage } = await stream.finalChatCompletion();
let error = null;
try {
  await client.completions.create({ ...asked, prompt, temperature: "hot" });
} catch (caught) {
  error = { status: caught.status, param: caught.param, type: caught.type };
}
console.log(
  JSON.stringify({
    models,
    completion: completion.choices[0].text,
    streamed,
    chat: chat.choices[0].message.content,
    chatStreamed,
    reason: chat.choices[0].finish_reason,
    usage,
    error,
  }),
);
