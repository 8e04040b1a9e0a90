"""The command line, run in process and against a verifier without a model."""

import io
import json
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.rpc.status_pb2 import Status
from grpc import StatusCode

import draftwire
from draftwire import Chunk, Client
from draftwire._sync.generations import GenerationStream
from draftwire.cli import main
from draftwire.cli.chat import introduce
from draftwire.cli.failure import Failure
from draftwire.v1 import drafter_service_pb2 as drafting
from tests.harness.command import Command
from tests.harness.stand_ins.fake_verifier import PROMPT, FakeVerifier, expected_ids, rich_status, text_of


def test_generate_streams_the_text(command: Command) -> None:
    done = command("generate", PROMPT, "--max-tokens", "7", "--seed", "5")
    assert (done.code, done.err) == (0, "")
    assert done.out == text_of(expected_ids(5, 7)) + "\n"


def test_generate_reads_standard_input(command: Command, verifier: FakeVerifier) -> None:
    assert command("generate", "-", "--max-tokens", "2", stdin=PROMPT).code == 0
    assert verifier.requests[0].text == PROMPT


@pytest.mark.usefixtures("verifier")
def test_a_closed_standard_input_has_no_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["draftwire", "chat"])
    monkeypatch.setattr(sys, "stdin", None)  # as Python has it if who starts a command has closed it
    with pytest.raises(SystemExit) as ended:
        main()
    sys.stdin.close()
    assert not ended.value.code


def test_generate_json(command: Command) -> None:
    done = command("generate", PROMPT, "--max-tokens", "7", "--seed", "5", "--json")
    result = json.loads(done.out)
    assert result["token_ids"] == expected_ids(5, 7)
    assert result["text"] == text_of(expected_ids(5, 7))
    assert result["speculation"]["steps"] == 4
    assert result["usage"]["total_tokens"] == 12
    assert result["seed"] == 5


def test_generate_passes_its_options_on(command: Command, verifier: FakeVerifier) -> None:
    options = "--max-tokens 3 --temperature 0 --top-k 4 --top-p 0.5 --min-p 0.1 --ignore-eos --stop a --stop b"
    options += " --no-speculation --drafter good --max-draft-tokens 6 --timeout 9 --prediction expected"
    options += " --acceptance threshold --preset json --threshold 0.5 --posterior-threshold 0.1 --posterior-alpha 0.2"
    options += " --dynamic-temperature --planning always"
    assert command("generate", "x", *options.split()).code == 0
    request = verifier.requests[0]
    assert (request.max_tokens, request.ignore_eos, list(request.stop)) == (3, True, ["a", "b"])
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (0, 4, 0.5, 0.1)
    speculation = request.speculation
    assert (speculation.enabled, speculation.drafter, speculation.max_draft_tokens) == (False, "good", 6)
    assert speculation.prediction.text == "expected"
    assert (speculation.acceptance, speculation.preset) == (4, 3)
    assert (speculation.threshold, speculation.posterior_threshold, speculation.posterior_alpha) == (0.5, 0.1, 0.2)
    assert speculation.dynamic_temperature
    assert speculation.planning == 2
    assert not request.HasField("structured_output")
    assert verifier.remaining_seconds[0] is not None


def test_generate_says_how_to_end_and_what_to_tell(command: Command, verifier: FakeVerifier) -> None:
    options = (
        "--stop-token-id 4 --stop-token-id 7 --include-stop --max-time 2.5 --logprobs 3 --prompt-logprobs 1 --echo"
        " --private"
    )
    assert command("generate", "x", *options.split(), "--max-tokens", "2").code == 0
    request = verifier.requests[0]
    assert (list(request.stop_token_ids), request.include_stop) == ([4, 7], True)
    assert 2 < request.max_time.ToTimedelta().total_seconds() <= 2.5
    assert (request.log_probs, request.prompt_log_probs, request.echo) == (3, 1, True)
    assert request.private


def test_generate_echoes_the_prompt(command: Command) -> None:
    done = command("generate", PROMPT, "--max-tokens", "7", "--seed", "5", "--echo")
    assert (done.code, done.out) == (0, PROMPT + text_of(expected_ids(5, 7)) + "\n")


def test_generate_echoes_the_prompt_of_an_empty_output(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.harness.stand_ins.fake_verifier.expected_ids", lambda *_: [])
    done = command("generate", PROMPT, "--echo")
    assert (done.code, done.out) == (0, PROMPT + "\n")


def test_generate_prints_log_probabilities(command: Command) -> None:
    done = command("generate", "x", "--max-tokens", "2", "--seed", "5", "--logprobs", "1")
    text, heading, *lines = done.out.splitlines()
    first, second = text
    assert heading.split() == ["OUTPUT", "LOGPROB", "RANK", "LIKELIEST"]
    assert lines[0].split() == [repr(first), f"{-ord(first)}.0000", "2", repr(first), f"{-ord(first)}.0000"]
    assert lines[1].startswith(repr(second))
    prompt = command("generate", "xy", "--max-tokens", "2", "--prompt-logprobs", "0").out.splitlines()
    assert prompt[1].split()[0] == "PROMPT"
    assert prompt[2].split() == ["'y'", "-121.0000", "2"]


def test_generate_json_tells_everything(command: Command) -> None:
    options = ("--logprobs", "1", "--prompt-logprobs", "0", "--echo", "--json")
    result = json.loads(command("generate", "xy", "--max-tokens", "2", "--seed", "5", *options).out)
    first = result["token_ids"][0]
    own = {"token_id": first, "logprob": -first, "text": chr(first), "bytes": [first]}
    assert result["logprobs"][0] == {**own, "rank": 2, "top": [own]}
    assert (result["text_offsets"], result["stop_token_id"]) == ([0, 1], None)
    assert result["prompt"]["text"] == "xy"
    assert result["prompt"]["logprobs"][0] is None
    assert result["prompt"]["logprobs"][1]["token_id"] == ord("y")
    assert (result["speculation"]["drafts"], result["speculation"]["accepted_per_position"]) == (1, [1])


def test_generate_in_a_form(command: Command, verifier: FakeVerifier, tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    file.write_text('{"type": "null"}', "utf-8-sig")
    for options, kind, form in (
        (["--json-schema", str(file)], "json_schema", '{"type": "null"}'),
        (["--json-schema", '{"enum": [' + "1, " * 200 + "2]}"], "json_schema", '{"enum": [' + "1, " * 200 + "2]}"),
        (["--json-object"], "json_object", True),
        (["--regex", "a+"], "regex", "a+"),
        (["--grammar", 'start: "a"\n'], "lark", 'start: "a"\n'),
        (["--ebnf", 'root ::= "a"'], "ebnf", 'root ::= "a"'),
    ):
        assert command("generate", "x", "--max-tokens", "2", *options).code == 0
        asked = verifier.requests[-1].structured_output
        assert (asked.WhichOneof("form"), getattr(asked, kind)) == (kind, form)
        assert not asked.HasField("jump_ahead")
    done = command("generate", "x", "--max-tokens", "2", "--choice", "a", "--choice", "b", "--no-jump-ahead")
    assert done.code == 0
    asked = verifier.requests[-1].structured_output
    assert (list(asked.choice.texts), asked.HasField("jump_ahead"), asked.jump_ahead) == (["a", "b"], True, False)
    done = command("generate", "x", "--regex", "a", "--choice", "b")
    assert "more than one form" in done.err


def test_chat_remembers_what_was_said(command: Command, verifier: FakeVerifier) -> None:
    options = ("--system", "be brief", "--max-tokens", "3", "--seed", "5", "--temperature", "0", "--private")
    done = command("chat", *options, stdin="hello\n\nand then?\n/new\nagain\n")
    answer, *others = done.out.splitlines()
    assert (done.code, len(answer), len(others), done.err) == (0, 3, 2, "")
    said = [[(each.role, each.content) for each in request.messages.messages] for request in verifier.requests]
    begin = [("system", "be brief"), ("user", "hello")]
    assert said == [
        begin,
        [*begin, ("assistant", answer), ("user", "and then?")],
        [("system", "be brief"), ("user", "again")],
    ]
    assert verifier.requests[0].max_tokens == 3
    assert all(each.private for each in verifier.requests)


def test_chat_has_commands(command: Command, verifier: FakeVerifier) -> None:
    done = command("chat", "--max-tokens", "3", "--seed", "5", stdin="/help\n/constant\nhello\n/quit\nmore\n")
    assert (done.code, len(done.out.splitlines())) == (0, 1)
    assert [each.messages.messages[0].content for each in verifier.requests] == ["hello"]
    *help_lines, refused = done.err.splitlines()
    assert [line.split()[0] for line in help_lines] == ["/new", "/help", "/quit"]
    assert refused == "unknown command '/constant'; /help shows the commands"


def test_chat_says_who_answers(verifier: FakeVerifier, capsys: pytest.CaptureFixture[str]) -> None:
    with Client(verifier.address) as client:
        introduce(client)
        assert f"at {verifier.address}; /help shows the commands" in capsys.readouterr().err
        refusal = "messages: the target's tokenizer has no chat template"
        verifier.fails_on["Tokenize"] = rich_status(
            StatusCode.INVALID_ARGUMENT, refusal, "INVALID_FIELD", ("messages",)
        )
        with pytest.raises(
            Failure, match="cannot chat: the target's tokenizer has no chat template; draftwire generate"
        ):
            introduce(client)


def test_the_version_is_a_command_too(command: Command) -> None:
    assert command("version").out == command("--version").out == f"{draftwire.__version__}\n"


def test_chat_tells_what_is_wrong(command: Command) -> None:
    done = command("chat", "--max-tokens", "-1", stdin="hello\n")
    assert (done.code, "max_tokens" in done.err) == (2, True)


def test_generate_with_several_drafters_by_name(command: Command, verifier: FakeVerifier) -> None:
    assert command("generate", "x", "--drafter", "local:ngram", "--drafter", "good", "--max-tokens", "2").code == 0
    speculation = verifier.requests[0].speculation
    assert (speculation.HasField("drafter"), list(speculation.drafter_names)) == (False, ["local:ngram", "good"])


def test_the_verifier_option_wins_over_the_environment(
    command: Command, second_verifier: FakeVerifier, verifier: FakeVerifier
) -> None:
    assert command("generate", "x", "--verifier", second_verifier.address, "--max-tokens", "2").code == 0
    assert (len(verifier.requests), len(second_verifier.requests)) == (0, 1)


def test_several_verifiers_fail_over(command: Command, verifier: FakeVerifier) -> None:
    done = command("generate", "x", "--verifier", "127.0.0.1:1", "--verifier", verifier.address, "--max-tokens", "2")
    assert done.code == 0


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (rich_status(StatusCode.INVALID_ARGUMENT, "top_p is wrong", "INVALID_FIELD", ("sampling.top_p",)), 2),
        (rich_status(StatusCode.RESOURCE_EXHAUSTED, "the verifier is full", "AT_CAPACITY"), 1),
    ],
)
def test_an_error_is_one_line(command: Command, verifier: FakeVerifier, status: Status, code: int) -> None:
    verifier.failures.append(status)
    done = command("generate", "x")
    assert (done.code, done.out) == (code, "")
    assert done.err.startswith("draftwire: ")
    assert done.err.count("\n") == 1


@pytest.mark.parametrize("form", [(), ("--json",)], ids=str)
def test_a_full_disk_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], verifier: FakeVerifier, form: tuple[str, ...]
) -> None:
    monkeypatch.setattr(sys, "argv", ["draftwire", "generate", PROMPT, "--verifier", verifier.address, *form])
    with Path("/dev/full").open("w", encoding="utf-8") as full, pytest.raises(SystemExit) as ended:
        monkeypatch.setattr(sys, "stdout", full)
        main()
    assert ended.value.code == 1
    assert capsys.readouterr().err == "draftwire: [Errno 28] No space left on device\n"


def test_an_output_without_all_characters(monkeypatch: pytest.MonkeyPatch, verifier: FakeVerifier) -> None:
    arguments = ["generate", "né", "--echo", "--max-tokens", "2", "--verifier", verifier.address]
    monkeypatch.setattr(sys, "argv", ["draftwire", *arguments])
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    assert written.getvalue().startswith(b"n\\xe9")


def test_no_verifier(command: Command) -> None:
    done = command("generate", "x", "--verifier", "127.0.0.1:1")
    assert done.code == 1
    assert done.err.startswith("draftwire: no answer from 127.0.0.1:1: ")
    assert done.err.count("\n") == 1


def test_wrong_input(command: Command) -> None:
    assert command("generate", "x", "--max-tokens", "many").code == 2
    assert command("generate", "x", "--seed", "-1").err == ("draftwire: seed: must be at least 0, got -1\n")
    assert command("generate", "x", "--verifier", "http://localhost").code == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("generate", "Missing argument 'PROMPT'"),
        ("generate x --max-tokens many", "--max-tokens"),
        ("generate x --nope", "--nope"),
        ("generate x y", "y"),
        ("nonsense", "nonsense"),
        ("drafters nonsense", "nonsense"),
        ("drafters swap one", "Missing argument"),
        ("drafters attach here:1 --label domain", "--label: expected KEY=VALUE, got 'domain'"),
        ("drafters attach here:1 --label a=1 --label a=2", "a is given twice"),
        ("generate x --label =code", "--label: expected KEY=VALUE"),
        ("generate x --logit-bias 5", "--logit-bias: expected ID=VALUE, got '5'"),
        ("generate x --logit-bias 5=much", "--logit-bias: expected ID=VALUE, got '5=much'"),
        ("generate x --logit-bias 5=1 --logit-bias 5=2", "--logit-bias: 5 is given twice"),
        ("drafters rollout start good bad", "--share"),
        ("drafters rollout start good bad --share 20", "got '20'"),
        ("drafters rollout start good bad --share 0%", "got '0%'"),
        ("drafters rollout start good bad --share much", "got 'much'"),
        ("drafters load-model here:1", "Missing argument 'MODEL'"),
    ],
)
def test_wrong_use_is_one_line(command: Command, verifier: FakeVerifier, arguments: str, words: str) -> None:
    done = command(*arguments.split())
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("draftwire: ")
    assert done.err.count("\n") == 1
    assert words in done.err
    assert verifier.calls == []


def test_help(command: Command) -> None:
    assert "rollout" in command("drafters", "--help").out
    assert command("drafters", "--help").code == 0
    shown = command("drafters")
    assert (shown.code, shown.err) == (2, "")
    assert "rollout" in shown.out


def test_rollout(command: Command, verifier: FakeVerifier) -> None:
    rollout = ("drafters", "rollout")
    assert command(*rollout, "status").out == "there is no rollout\n"
    begun = command(*rollout, "start", "good", "bad", "--share", "12.5%")
    assert begun.out == "bad gets 0.125 of the requests of good\n"
    table = command(*rollout, "status").out.splitlines()
    assert table[0] == "good -> bad, share 0.125, running"
    assert table[1].split() == ["DRAFTER", "REQUESTS", "STEPS", "DRAFTED", "ACCEPTED", "PER", "STEP"]
    assert table[2].split() == ["good", "0", "0", "0", "-", "-"]
    assert table[3].split() == ["bad", "0", "4", "10", "60%", "1.50"]
    assert command(*rollout, "promote", "bad").out == "bad took over from good\n"
    assert command(*rollout, "start", "good", "bad", "--share", "0.1").code == 0
    ended = json.loads(command(*rollout, "withdraw", "bad", "--json").out)
    assert (ended["state"], ended["share"], ended["new"]["acceptance_rate"]) == ("withdrawn", 0.1, 0.6)
    states = [each["state"] for each in json.loads(command(*rollout, "status", "--json").out)]
    assert states == ["promoted", "withdrawn"]
    assert "promoted: asked for" in command(*rollout, "status").out
    failed = command(*rollout, "promote", "bad")
    assert (failed.code, failed.err) == (1, "draftwire: no rollout of bad\n")
    assert [request.share for request in verifier.pool_requests] == [0.125, 0.1]


def test_changes_to_the_logits(command: Command, verifier: FakeVerifier) -> None:
    arguments = (
        "--typical-p 0.5 --repetition-penalty 1.5 --presence-penalty -0.5 --frequency-penalty 0.25 --min-tokens 1 "
        "--logit-bias 5=1.5 --logit-bias 7=-100 --bad-word foo --bad-word bar --max-tokens 2"
    )
    assert command("generate", "x", *arguments.split()).code == 0
    asked = verifier.requests[0]
    sampling = asked.sampling
    assert (sampling.typical_p, sampling.repetition_penalty) == (0.5, 1.5)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (-0.5, 0.25)
    assert (dict(sampling.logit_bias), list(sampling.bad_words)) == ({5: 1.5, 7: -100.0}, ["foo", "bar"])
    assert asked.min_tokens == 1


def test_labels(command: Command, verifier: FakeVerifier) -> None:
    labels = ("--label", "domain=code", "--label", "size=small=ish")
    attached = command("drafters", "attach", "here:1", *labels, "--json")
    assert json.loads(attached.out)["labels"] == {"domain": "code", "size": "small=ish"}
    assert command("generate", "x", *labels, "--drafters", "2", "--max-tokens", "2").code == 0
    asked = verifier.requests[0].speculation
    assert (dict(asked.labels), asked.drafters) == ({"domain": "code", "size": "small=ish"}, 2)
    listed = command("drafters", "list").out.splitlines()
    assert listed[0].split()[-2:] == ["ACC/S", "LABELS"]
    assert listed[1].split()[-2:] == ["120", "domain=code"]


def test_load_model(command: Command, verifier: FakeVerifier) -> None:
    load = ("drafters", "load-model", verifier.address, "models/other")
    assert command(*load).out == "models/other is being loaded\n"
    assert not verifier.pool_requests[-1].wait
    verifier.load_steps = [drafting.MODEL_LOAD_STATE_SERVING]
    assert command(*load, "--wait", "--timeout", "7").out == "models/other is served\n"
    assert verifier.pool_requests[-1].wait
    assert 0 < verifier.remaining_seconds[-1] <= 7
    verifier.load_steps = [drafting.MODEL_LOAD_STATE_FAILED]
    failed = command(*load, "--wait")
    assert (failed.code, failed.out) == (1, "")
    assert failed.err == "draftwire: models/other could not be loaded: no such model\n"
    assert json.loads(command(*load, "--json").out)["state"] == "loading"


def test_load_model_does_not_wait_longer_than_it_may(command: Command) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        done = command("drafters", "load-model", address, "m", "--timeout", "0.3")
    assert done.code == 1
    assert done.err.startswith("draftwire: timeout of 0.3 s ran out")


def test_drafters(command: Command) -> None:
    listed = command("drafters", "list")
    assert "good" in listed.out
    assert "70%" in listed.out
    assert [d["name"] for d in json.loads(command("drafters", "list", "--json").out)] == ["good", "bad"]
    assert command("drafters", "attach", "here:1", "--name", "mine").out == "mine is attached and ready\n"
    assert json.loads(command("drafters", "attach", "here:1", "--json").out)["address"] == "here:1"
    assert command("drafters", "detach", "mine").out == "mine is detached\n"
    assert "bad took over from good; running requests moved: 3" in command("drafters", "swap", "good", "bad").out


def test_drafter_errors(command: Command, verifier: FakeVerifier) -> None:
    verifier.failures.append(rich_status(StatusCode.NOT_FOUND, "no drafter x is attached", "DRAFTER_NOT_FOUND"))
    done = command("drafters", "detach", "x")
    assert (done.code, done.err) == (1, "draftwire: no drafter x is attached\n")


def test_watch_prints_every_state(command: Command, verifier: FakeVerifier) -> None:
    lost = rich_status(StatusCode.INTERNAL, "over", "INTERNAL")
    verifier.break_after = [0]  # after two states; the following call fails

    verifier.after_break = lambda: verifier.failures.append(lost)
    done = command("drafters", "watch", "--json")
    assert done.code == 1
    assert [len(json.loads(line)) for line in done.out.splitlines()] == [1, 0]


def test_version(command: Command) -> None:
    from draftwire import __version__

    assert command("--version").out.strip() == __version__


def test_ctrl_c_ends_an_answer_and_not_the_conversation(
    command: Command, verifier: FakeVerifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = GenerationStream.__iter__

    def interrupted(stream: GenerationStream) -> Iterator[Chunk]:
        monkeypatch.setattr(GenerationStream, "__iter__", whole)
        yield next(whole(stream))
        raise KeyboardInterrupt

    monkeypatch.setattr(GenerationStream, "__iter__", interrupted)
    done = command("chat", "--max-tokens", "8", "--seed", "5", stdin="hello\nand then?\n")
    first, second = done.out.splitlines()
    assert done.code == 0
    assert "the answer was stopped" in done.err
    assert len(second) == 8 > len(first)
    said = [(each.role, each.content) for each in verifier.requests[1].messages.messages]
    assert said == [("user", "hello"), ("assistant", first), ("user", "and then?")]


class _Typed(io.StringIO):
    """Lines that somebody types on a terminal."""

    def isatty(self) -> bool:
        return True


def test_an_error_ends_an_answer_and_not_the_conversation(
    command: Command, verifier: FakeVerifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(io, "StringIO", _Typed)
    monkeypatch.setattr("draftwire.cli.chat.introduce", lambda _: None)
    full = rich_status(StatusCode.INVALID_ARGUMENT, "the context is full", "CONTEXT_EXCEEDED")
    lines = iter(["hello\n", "much text\n", "and then?\n", ""])

    def typed(self: _Typed) -> str:
        line = next(lines)
        if line == "much text\n":
            verifier.failures.append(full)
        return line

    monkeypatch.setattr(_Typed, "readline", typed)
    done = command("chat", "--max-tokens", "3", "--seed", "5")
    assert (done.code, "the context is full" in done.err) == (0, True)
    said = [(each.role, each.content) for each in verifier.requests[-1].messages.messages]
    assert said == [("user", "hello"), ("assistant", done.out.splitlines()[0]), ("user", "and then?")]


def test_drafters_are_listed_with_their_models(command: Command) -> None:
    command("drafters", "attach", "here:1")
    heading, row, *_ = command("drafters", "list").out.splitlines()
    assert heading.split()[:4] == ["NAME", "ADDRESS", "STATE", "MODEL"]
    assert row.split()[2] == "ready"
