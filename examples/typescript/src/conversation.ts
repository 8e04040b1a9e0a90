// One Draft stream: all sequences of one verifier. Follows docs/protocol.md and docs/write-a-drafter.md.
import { status as code } from "@grpc/grpc-js";
import { callError, status, type Status } from "./contract.js";
import { Sequence, type Proposal } from "./sequence.js";

const revision = 1;
export const limits = { max_sequences: 256, max_tree_nodes: 64, max_message_bytes: 4 << 20, max_sequence_tokens: 1 << 17 };

class SequenceFault extends Error {
  constructor(readonly status: Status) {
    super(status.message);
  }
}

function fault(reason: string, message: string, field?: string, kind: code = code.INVALID_ARGUMENT): SequenceFault {
  return new SequenceFault(status(kind, reason, message, field));
}

// What ends the stream.
export class StreamFault extends Error {
  readonly error: object;

  constructor(reason: string, message: string) {
    super(message);
    this.error = callError(status(code.FAILED_PRECONDITION, reason, message));
  }
}

export class Conversation {
  private greeted = false;
  private readonly sequences = new Map<number, Sequence>();
  private readonly failed = new Map<number, number>(); // epochs of openings that have failed, by sequence

  constructor(private readonly send: (response: object) => void) {}

  take(request: any): void {
    if (this.greeted === (request.message === "hello")) {
      throw new StreamFault("HANDSHAKE_EXPECTED", "hello comes first, and once");
    }
    switch (request.message) {
      case "hello":
        return this.greet(request.hello);
      case "open":
        return this.guarded(request.open, () => this.open(request.open));
      case "verdicts":
        return this.follow(request.verdicts);
      case "close":
        return request.close.sequence_ids.forEach((id: number) => this.forget(id));
      case "sequence_error":
        if (this.sequences.get(request.sequence_error.sequence_id)?.epoch === request.sequence_error.epoch) {
          this.forget(request.sequence_error.sequence_id);
        }
        return;
      case "ping":
        return this.send({ pong: { number: request.ping.number } });
    } // a message of another kind is of a later revision, and is ignored
  }

  private greet(hello: any): void {
    if (hello.min_protocol_revision > revision || hello.protocol_revision < revision) {
      throw new StreamFault("PROTOCOL_MISMATCH", `this drafter speaks revision ${revision}`);
    }
    this.greeted = true;
    // It copies ids from the sequence itself, so it has no vocabulary and no tokenizer that could be another one.
    this.send({
      hello: {
        protocol_revision: revision,
        min_protocol_revision: revision,
        build: "draftwire example in TypeScript",
        capabilities: ["ping"],
        model: { model_id: "ngram-typescript" },
        limits,
      },
    });
  }

  private open(chunk: any): void {
    let known = this.sequences.get(chunk.sequence_id);
    const stale =
      known && (chunk.epoch < known.epoch || (chunk.epoch === known.epoch && known.complete));
    if (stale || chunk.epoch <= (this.failed.get(chunk.sequence_id) ?? -1)) return;
    if (known === undefined || chunk.epoch > known.epoch) known = this.begin(chunk);
    if (chunk.offset !== known.tokens.length) {
      throw fault("INVALID_FIELD", `must be ${known.tokens.length}, got ${chunk.offset}`, "offset");
    }
    if (chunk.token_ids.length === 0 || chunk.offset + chunk.token_ids.length > known.openingLength) {
      throw fault("INVALID_FIELD", "does not fit committed_length", "token_ids");
    }
    known.commit(chunk.token_ids);
    if (known.complete) {
      this.send({ opened: { sequence_id: known.id, epoch: known.epoch } });
      this.draft([known]);
    }
  }

  private begin(chunk: any): Sequence {
    this.forget(chunk.sequence_id);
    if (chunk.committed_length < 1) throw fault("INVALID_FIELD", "must be at least 1", "committed_length");
    if (chunk.committed_length > limits.max_sequence_tokens) {
      throw fault("CONTEXT_EXCEEDED", `must be at most ${limits.max_sequence_tokens}`, "committed_length");
    }
    if (chunk.max_length < chunk.committed_length) {
      throw fault("INVALID_FIELD", "must be at least committed_length", "max_length");
    }
    if (chunk.max_tree_nodes < 1) throw fault("INVALID_FIELD", "must be at least 1", "max_tree_nodes");
    if (this.sequences.size >= limits.max_sequences) {
      throw fault("AT_CAPACITY", "all sequences are open", undefined, code.RESOURCE_EXHAUSTED);
    }
    const credit = Math.min(chunk.max_tree_nodes, limits.max_tree_nodes);
    const begun = new Sequence(chunk.sequence_id, chunk.epoch, chunk.committed_length, chunk.max_length, credit);
    this.sequences.set(begun.id, begun);
    return begun;
  }

  private follow(batch: any): void {
    const followed: Sequence[] = [];
    for (const verdict of batch.verdicts) {
      this.guarded(verdict, () => {
        const known = this.commit(verdict);
        if (known !== undefined) followed.push(known);
      });
    }
    // Absent means that the opening's credit holds; with `defaults`, an absent optional field is null or missing.
    this.draft(followed, batch.max_tree_nodes ?? Infinity);
  }

  private commit(verdict: any): Sequence | undefined {
    const known = this.sequences.get(verdict.sequence_id);
    if (known && verdict.epoch < known.epoch) return undefined; // stale
    if (verdict.epoch <= (this.failed.get(verdict.sequence_id) ?? -1)) return undefined; // it could not know yet
    if (known === undefined || known.epoch !== verdict.epoch || !known.complete) {
      throw fault("UNKNOWN_SEQUENCE", "is not open", undefined, code.NOT_FOUND);
    }
    if (known.tokens.length + verdict.token_ids.length !== verdict.committed_length) {
      throw fault("OUT_OF_SYNC", `has ${known.tokens.length} tokens here`, undefined, code.FAILED_PRECONDITION);
    }
    if (verdict.committed_length > known.maxLength) {
      throw fault("INVALID_FIELD", `must be at most max_length, ${known.maxLength}`, "committed_length");
    }
    known.commit(verdict.token_ids);
    return known;
  }

  // Drafts one step for some sequences, and sends it as one message.
  private draft(sequences: Sequence[], most = Infinity): void {
    const began = performance.now();
    const proposals = sequences.map((each) => each.draft(most)).filter((each): each is Proposal => each !== undefined);
    if (proposals.length > 0) {
      this.send({ proposals: { proposals, step_seconds: Math.max(1e-6, (performance.now() - began) / 1000) } });
    }
  }

  // Runs what concerns one sequence. A fault of its own closes that sequence, and no other.
  private guarded(subject: { sequence_id: number; epoch: number }, action: () => void): void {
    try {
      action();
    } catch (error) {
      if (!(error instanceof SequenceFault)) throw error;
      const { sequence_id, epoch } = subject;
      this.forget(sequence_id);
      this.failed.set(sequence_id, epoch);
      this.send({ sequence_error: { sequence_id, epoch, status: error.status } });
    }
  }

  private forget(id: number): void {
    this.sequences.delete(id);
    this.failed.delete(id);
  }
}
