"""One drafter of the pool: its stream, its sequences and the messages of both."""
