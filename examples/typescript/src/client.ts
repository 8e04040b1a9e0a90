// Streams a text: node dist/client.js PROMPT [HOST:PORT] [MAX_TOKENS] [SEED]
import * as grpc from "@grpc/grpc-js";
import { reasonOf, VerifierService } from "./contract.js";

const [prompt = "def fib(n):", address = "localhost:50051", maxTokens = "64", seed] = process.argv.slice(2);
const client: any = new VerifierService(address, grpc.credentials.createInsecure());
const sampling = { temperature: 0.8, ...(seed === undefined ? {} : { seed }) };
const call: grpc.ClientReadableStream<any> = client.Generate({ text: prompt, sampling, max_tokens: Number(maxTokens) });

call.on("data", (response) => {
  if (response.event === "started") {
    console.error(`seed ${response.started.seed}`); // with it the same text comes again
  } else if (response.event === "chunk") {
    process.stdout.write(response.chunk.text);
  } else if (response.event === "finished") {
    const { text, finish_reason, usage, speculation } = response.finished;
    process.stdout.write(text); // what was held back, as it might have begun a stop string
    console.error(`\n${finish_reason}, ${usage.completion_tokens} tokens in ${speculation.steps} steps`);
  }
});
call.on("error", (error: grpc.ServiceError) => {
  console.error(`${grpc.status[error.code]} ${reasonOf(error) ?? ""}: ${error.details}`);
  process.exitCode = 1;
});
call.on("close", () => client.close());
