"""``draftwire check-drafter``: tries a running drafter against the rules of docs/protocol.md."""
