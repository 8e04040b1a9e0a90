// A drafter that copies what followed the same tokens before: node dist/drafter.js [HOST:PORT]
import * as grpc from "@grpc/grpc-js";
import { DrafterService } from "./contract.js";
import { Conversation, limits, StreamFault } from "./conversation.js";

function draft(call: grpc.ServerDuplexStream<object, object>): void {
  const conversation = new Conversation((response) => call.write(response));
  let ended = false;
  call.on("data", (request) => {
    if (ended) return;
    try {
      conversation.take(request);
    } catch (error) {
      ended = true;
      call.emit("error", error instanceof StreamFault ? error.error : error);
    }
  });
  call.on("end", () => call.end()); // the verifier has ended its side
}

const address = process.argv[2] ?? "127.0.0.1:50052";
const server = new grpc.Server({ "grpc.max_receive_message_length": limits.max_message_bytes });
server.addService(DrafterService, { Draft: draft }); // the other calls may stay unimplemented
server.bindAsync(address, grpc.ServerCredentials.createInsecure(), (error, port) => {
  if (error) throw error;
  console.log(`listening at ${address.slice(0, address.lastIndexOf(":"))}:${port}`);
});
for (const signal of ["SIGINT", "SIGTERM"]) process.on(signal, () => server.forceShutdown());
