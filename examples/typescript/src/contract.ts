// The contract, read from the repository's protos when a program starts, and errors in its form.
import * as grpc from "@grpc/grpc-js";
import { loadSync, type MessageTypeDefinition } from "@grpc/proto-loader";
import { fileURLToPath } from "node:url";

const root = fileURLToPath(new URL("../../../", import.meta.url));

const definition = loadSync(["drafter_service", "verifier_service"].map((name) => `draftwire/v1/${name}.proto`).concat("google/rpc/error_details.proto"), {
  includeDirs: [`${root}protos`, `${root}third_party/protos`],
  keepCase: true, // names as in the protos
  longs: String, // a seed may use all 64 bits, a number has only 53
  enums: String,
  defaults: true, // an absent field reads as its zero, but an absent optional field or message stays absent
  oneofs: true, // `message.message` is the name of the oneof's field that is set
});

const services = grpc.loadPackageDefinition(definition) as any;
export const DrafterService: grpc.ServiceDefinition = services.draftwire.v1.DrafterService.service;
export const VerifierService: grpc.ServiceClientConstructor = services.draftwire.v1.VerifierService;

type Message = MessageTypeDefinition<object, object>;

function pack(name: string, value: object): { type_url: string; value: Buffer } {
  return { type_url: `type.googleapis.com/${name}`, value: (definition[name] as Message).serialize(value) };
}

export type Status = { code: number; message: string; details: { type_url: string; value: Buffer }[] };

// Returns a google.rpc.Status: ErrorInfo with a reason of draftwire.v1.ErrorReason, and BadRequest for a wrong field.
export function status(code: grpc.status, reason: string, message: string, field?: string): Status {
  const details = [pack("google.rpc.ErrorInfo", { reason, domain: "draftwire", metadata: {} })];
  if (field !== undefined) {
    details.push(pack("google.rpc.BadRequest", { field_violations: [{ field, description: message }] }));
  }
  return { code, message, details };
}

// Returns what ends a call with a status: gRPC carries it in a trailer of this name.
export function callError(found: Status): Partial<grpc.StatusObject> {
  const metadata = new grpc.Metadata();
  metadata.set("grpc-status-details-bin", (definition["google.rpc.Status"] as Message).serialize(found));
  return { code: found.code, details: found.message, metadata };
}

// Returns the reason of a failed call; undefined if it has none.
export function reasonOf(error: grpc.ServiceError): string | undefined {
  const [bytes] = error.metadata.get("grpc-status-details-bin");
  if (!(bytes instanceof Buffer)) return undefined;
  const found = (definition["google.rpc.Status"] as Message).deserialize(bytes) as Status;
  const info = found.details.find((each) => each.type_url.endsWith("/google.rpc.ErrorInfo"));
  return info && ((definition["google.rpc.ErrorInfo"] as Message).deserialize(info.value) as { reason: string }).reason;
}
