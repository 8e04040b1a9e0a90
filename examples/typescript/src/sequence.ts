// One sequence: its committed tokens, and the chain of nodes drafted below them.
const longest = 4; // tokens that are looked up
const furthest = 8; // nodes of a chain

export type Proposal = {
  sequence_id: number;
  epoch: number;
  committed_length: number;
  first_node_id: number;
  token_ids: number[];
  parent_ids: number[];
  log_probs: number[];
  last: boolean;
};

export class Sequence {
  readonly tokens: number[] = [];
  private chain: { id: number; token: number }[] = [];
  private nextNode = 1;
  private readonly places = new Map<string, { last: number; before: number }>();

  constructor(
    readonly id: number,
    readonly epoch: number,
    readonly openingLength: number,
    readonly maxLength: number,
    readonly credit: number,
  ) {}

  get complete(): boolean {
    return this.tokens.length >= this.openingLength;
  }

  // Adds committed tokens. Where they follow the chain, the rest of it survives with its ids; where they leave it, all
  // of it is rolled back.
  commit(tokens: number[]): void {
    for (const token of tokens) {
      this.chain = this.chain[0]?.token === token ? this.chain.slice(1) : [];
      this.tokens.push(token);
      this.note();
    }
  }

  // Remembers where the last tokens stand: the place after them, and that of the time before.
  private note(): void {
    for (let n = 1; n <= Math.min(longest, this.tokens.length); n++) {
      const key = this.tokens.slice(-n).join();
      const known = this.places.get(key);
      this.places.set(key, { last: this.tokens.length, before: known?.last ?? 0 });
    }
  }

  // Drafts what followed the same tokens the last time. Returns undefined if nothing is to be said.
  draft(most: number): Proposal | undefined {
    const context = [...this.tokens.slice(-longest), ...this.chain.map((node) => node.token)];
    const room = Math.min(
      Math.min(most, this.credit, furthest) - this.chain.length,
      this.maxLength - this.tokens.length - this.chain.length,
    );
    const proposal: Proposal = {
      sequence_id: this.id,
      epoch: this.epoch,
      committed_length: this.tokens.length,
      first_node_id: this.nextNode,
      token_ids: [],
      parent_ids: [],
      log_probs: [],
      last: true, // nothing more follows before the next verdict
    };
    for (let count = 0; count < room; count++) {
      const found = this.next(context);
      if (found === undefined) break;
      context.push(found.token);
      proposal.token_ids.push(found.token);
      proposal.parent_ids.push(this.chain.at(-1)?.id ?? 0);
      proposal.log_probs.push(Math.log(found.matched / (found.matched + 1)));
      this.chain.push({ id: this.nextNode++, token: found.token });
    }
    return proposal.token_ids.length > 0 ? proposal : undefined;
  }

  private next(context: number[]): { token: number; matched: number } | undefined {
    for (let matched = Math.min(longest, context.length); matched > 0; matched--) {
      const known = this.places.get(context.slice(-matched).join());
      if (known === undefined) continue;
      const place = known.last < this.tokens.length ? known.last : known.before;
      const token = place > 0 ? this.tokens[place] : undefined;
      if (token !== undefined) return { token, matched };
    }
    return undefined;
  }
}
