"""protos/ and third_party/protos/ have everything needed to write a peer in another language."""

import re
from pathlib import Path

import grpc_tools
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.rpc import error_details_pb2, status_pb2
from grpc_tools import protoc

from draftwire.v1.model_info_pb2 import Limits, PeerInfo
from draftwire_core.engine.tree import proposal
from draftwire_core.runtime.errors import ServiceError
from draftwire_core.runtime.rpc import handshake

ROOT = Path(__file__).resolve().parents[2]
CONTRACT, OTHERS = ROOT / "protos", ROOT / "third_party/protos"
WELL_KNOWN = Path(grpc_tools.__file__).parent / "_proto" / "google" / "protobuf"


def described(path: Path, place: Path) -> descriptor_pb2.FileDescriptorSet:
    """Returns a file's descriptors as a generator reads them: from the two trees and protobuf's own types only."""
    own = place / "include" / "google"
    own.mkdir(parents=True)
    (own / "protobuf").symlink_to(WELL_KNOWN)
    found = place / "found.binpb"
    includes = [f"--proto_path={each}" for each in (CONTRACT, OTHERS, own.parent)]
    command = ["protoc", *includes, "--include_imports", f"--descriptor_set_out={found}", str(path)]
    assert protoc.main(command) == 0
    return descriptor_pb2.FileDescriptorSet.FromString(found.read_bytes())


@pytest.mark.parametrize("name", ["status.proto", "error_details.proto"])
def test_errors_can_be_generated(name: str, tmp_path: Path) -> None:
    pool = descriptor_pool.DescriptorPool()
    for file in described(OTHERS / "google/rpc" / name, tmp_path).file:
        pool.AddSerializedFile(file.SerializeToString())
    if name == "status.proto":
        theirs = message_factory.GetMessageClass(pool.FindMessageTypeByName("google.rpc.Status"))
        assert theirs(code=3).SerializeToString() == status_pb2.Status(code=3).SerializeToString()
        return
    for detail in ("ErrorInfo", "BadRequest", "PreconditionFailure", "RetryInfo"):
        assert pool.FindMessageTypeByName(f"google.rpc.{detail}").fields
    theirs = message_factory.GetMessageClass(pool.FindMessageTypeByName("google.rpc.ErrorInfo"))
    said = {"reason": "OUT_OF_SYNC", "domain": "draftwire"}
    assert theirs(**said).SerializeToString() == error_details_pb2.ErrorInfo(**said).SerializeToString()


def comment(file: str, field: str) -> str:
    """Returns the comment of a field as one line."""
    text = (CONTRACT / "draftwire/v1" / file).read_text()
    (found,) = re.findall(rf"((?:^ +//.*\n)+)^ +(?:repeated |optional )?\w+ {field} = \d+;", text, re.MULTILINE)
    return " ".join(line.strip().removeprefix("//").strip() for line in found.splitlines())


def test_the_contract_names_each_capability() -> None:
    named = set(re.findall(r'"([\w-]+)"', comment("model_info.proto", "capabilities")))
    assert named == {value for name, value in vars(handshake).items() if name.startswith("CAPABILITY_")}


def test_what_the_contract_says_of_absent_fields_is_so() -> None:
    assert f"Empty counts as {proposal._UNKNOWN_LOG_PROB} " in comment("proposal.proto", "log_probs")
    # protocol_revision is required; each other field documents its default where it is absent.
    own = PeerInfo(protocol_revision=1, min_protocol_revision=1, limits=Limits(max_tree_nodes=8))
    handshake.check_peer(own, PeerInfo(protocol_revision=1))
    with pytest.raises(ServiceError, match="revisions"):
        handshake.check_peer(own, PeerInfo())
