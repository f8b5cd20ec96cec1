"""What a router demands of the text, in each of VllmEngine's forms."""

from __future__ import annotations

import json
import re
from typing import Any

import grpc
import pytest
from radixloop.v1 import common_pb2, inference_pb2
from smg_grpc_proto import vllm_engine_pb2

from tests.runtime.services_harness import Server, refused

from .router_client import answered, asked, stub

SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}


def text_of(server: Server, ids: list[int]) -> str:
    tokens = common_pb2.TokenIds(ids=ids)
    return server.inference.Detokenize(inference_pb2.DetokenizeRequest(token_ids=tokens)).text


@pytest.mark.parametrize(
    ("constraint", "pattern"),
    [
        ({"json_schema": json.dumps(SCHEMA)}, r'\{"a": [12]\}'),
        ({"regex": "[a-c]{3,5}"}, "[a-c]{3,5}"),
        ({"grammar": 'root ::= "x" root | "y"'}, "x*y"),
        ({"choice": vllm_engine_pb2.ChoiceConstraint(choices=["yes", "no"])}, "yes|no"),
        ({"structural_tag": '{"type": "structural_tag", "format": {"type": "const_string", "value": "hi"}}'}, "hi"),
    ],
)
def test_a_text_is_what_the_router_says(server: Server, constraint: dict[str, Any], pattern: str) -> None:
    request = asked([9, 10], max_tokens=300, temperature=1.0, seed=4, ignore_eos=False, n=2, **constraint)
    _, completes = answered(server, request)
    assert len(completes) == 2
    for complete in completes:
        assert complete.finish_reason == "stop"
        assert re.fullmatch(pattern, text_of(server, list(complete.output_ids)))


def test_an_object_only_where_it_is_asked_for(server: Server) -> None:
    texts = []
    for wanted in (True, False):
        _, (complete,) = answered(server, asked([9, 10], max_tokens=20, json_object=wanted))
        texts.append(text_of(server, list(complete.output_ids)))
    assert texts[0].startswith("{")
    assert not texts[1].startswith("{")


@pytest.mark.parametrize(
    ("constraint", "says"),
    [
        ({"regex": "("}, "sampling_params.regex is '('"),
        ({"json_schema": '{"not": {}}'}, "sampling_params.json_schema/not"),
        ({"choice": vllm_engine_pb2.ChoiceConstraint()}, "sampling_params.choice"),
    ],
)
def test_what_is_wrong_is_named(server: Server, constraint: dict[str, Any], says: str) -> None:
    error = refused(lambda: stub(server).Generate(asked([9], **constraint), timeout=60))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert says in error.details()
