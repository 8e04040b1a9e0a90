// Calls the gateway at argv[2] with forms and tools that zod describes, by OpenAI's own helpers; prints the results as JSON.
// argv[3]: the tokens that begin JSON. argv[4]: the folder with the packages.
import { createRequire } from "node:module";

const [, , address, tokens, packages] = process.argv;
const require = createRequire(`${packages}/`);
const OpenAI = require("openai");
const { zodFunction, zodResponseFormat, zodResponsesFunction, zodTextFormat } = require("openai/helpers/zod");
const { z } = require("zod");

const client = new OpenAI({ apiKey: "none", baseURL: `${address}/v1`, maxRetries: 0 });
const messages = [{ role: "user", content: "How is the weather?" }];
const asked = { model: "target", seed: 3, logit_bias: Object.fromEntries(tokens.split(",").map((each) => [each, 100])) };
const told = {};

const City = z.enum(["Rome", "Oslo"]);
const Forecast = z.object({ city: City.describe("Where."), days: z.int().min(1).max(9) });
const Weather = z.object({
  city: City,
  sky: z.discriminatedUnion("kind", [
    z.object({ kind: z.literal("sun"), hours: z.number().int().min(0).max(24) }),
    z.object({ kind: z.literal("rain"), heavy: z.boolean().nullable() }),
  ]),
  winds: z.array(z.enum(["north", "south"])).min(1).max(2),
  code: z.string().regex(/^[A-Z]{2}$/),
});
// Each of these writes a keyword or format of its own into the schema.
const kinds = {
  uuid: z.uuid(),
  url: z.url(),
  date: z.iso.date(),
  ipv4: z.ipv4(),
  base64: z.base64().max(8),
  int: z.int(),
  positive: z.number().positive().max(10),
  multiple: z.number().int().multipleOf(5).min(0).max(100),
  nullable: z.string().max(3).nullable(),
  literal: z.literal(["a", 1]),
  union: z.union([z.boolean(), z.number().int().min(0).max(3)]),
  tuple: z.tuple([z.boolean(), City]),
  record: z.record(City, z.boolean()),
  length: z.string().min(2).max(4),
  defaulted: z.enum(["x", "y"]).default("x"),
  readonly: z.array(z.boolean()).max(2).readonly(),
  lookahead: z.string().regex(/^(?!\.)[a-z.]{1,4}$/),
};

const chat = { ...asked, messages };
const form = zodResponseFormat(Weather, "weather");
told.form = (await client.chat.completions.parse({ ...chat, response_format: form })).choices[0].message.parsed;
const stream = client.chat.completions.stream({ ...chat, response_format: form });
told.formStreamed = (await stream.finalChatCompletion()).choices[0].message.parsed;
const tools = [zodFunction({ name: "forecast", parameters: Forecast })];
const called = await client.chat.completions.parse({ ...chat, tools, tool_choice: "required" });
told.call = called.choices[0].message.tool_calls[0].function.parsed_arguments;
told.both = (
  await client.chat.completions.parse({ ...chat, tools, response_format: form })
).choices[0].message.parsed;

const text = { format: zodTextFormat(Weather, "weather") };
const input = messages;
told.response = (await client.responses.parse({ ...asked, input, text })).output_parsed;
const responseTools = [zodResponsesFunction({ name: "forecast", parameters: Forecast })];
const response = await client.responses.parse({ ...asked, input, tools: responseTools, tool_choice: "required" });
told.responseCall = response.output.find((item) => item.type === "function_call").parsed_arguments;

// By OpenAI's helper if that takes the kind, which then is strict, and as zod writes it.
told.strict = {};
told.plain = {};
for (const [name, kind] of Object.entries(kinds)) {
  const schema = z.object({ value: kind });
  const plain = { type: "json_schema", json_schema: { name, schema: z.toJSONSchema(schema) } };
  told.plain[name] = await valueOf(schema, plain);
  let strict;
  try {
    strict = zodResponseFormat(schema, name);
  } catch {
    continue;
  }
  told.strict[name] = await valueOf(schema, strict);
}
console.log(JSON.stringify(told));

async function valueOf(schema, response_format) {
  try {
    const done = await client.chat.completions.create({ ...chat, response_format, max_tokens: 400 });
    return schema.parse(JSON.parse(done.choices[0].message.content)).value;
  } catch (error) {
    return { error: `${error.name}: ${error.message}`.slice(0, 300) };
  }
}
