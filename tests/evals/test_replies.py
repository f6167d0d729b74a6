"""What is made of the bodies that servers send."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from serving import CHOICE, USAGE, chat, completion

from bandpo_runs.evals.backends.replies import Answer, Failure, read_reply


def read(body, status=200):
    return read_reply(status, body if isinstance(body, bytes) else json.dumps(body).encode())


def refused(message, **more):
    return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None} | more}


NONSENSE = {
    "HTML": (b"<html><body>hello</body></html>", "one JSON object is expected (Expecting value), got '<html>"),
    "nothing": (b"", "got ''"),
    "half": (json.dumps(completion()).encode()[:-20], "one JSON object is expected"),
    "null": (b"null", "got None"),
    "a list": (b"[]", "got []"),
    "a text": (b'"ok"', "got 'ok'"),
    "a huge number": (b"1" * 5000, "Exceeds the limit (4300 digits)"),
    "deep": (b"[" * 50_000, "nested more than"),
    "no UTF-8": (b'{"choices": "\xff"}', "can't decode byte 0xff in position 13"),
    "choices null": (completion(choices=None), "'choices' is None"),
    "choices missing": ({"usage": USAGE}, "'choices' is missing"),
    "choices empty": (completion(choices=[]), "'choices'"),
    "two choices": (completion(choices=[CHOICE, CHOICE]), "'choices'"),
    "choices a text": (completion(choices="a"), "'choices' is 'a'"),
    "a choice null": (completion(choices=[None]), "'choices.0' is None"),
    "text missing": (completion(choices=[{"index": 0}]), "'choices.0.message' is missing"),
    "text a number": (completion(choices=[CHOICE | {"text": 1}]), "'choices.0.text' is 1"),
    "finish a number": (completion(choices=[CHOICE | {"finish_reason": 1}]), "'choices.0.finish_reason' is 1"),
    "message null": (chat(None), "'choices.0.message' is missing or null"),
    "message a text": (chat("a"), "'choices.0.message' is 'a'"),
    "content a number": (chat({"content": 3.5}), "'choices.0.message.content' is 3.5"),
}


@pytest.mark.parametrize(("body", "said"), NONSENSE.values(), ids=NONSENSE)
def test_a_200_without_an_answer_is_an_error_that_may_pass(body, said):
    found = read(body)
    assert isinstance(found, Failure)
    assert (found.kind, found.status, found.everyone) == ("error", 502, False)
    assert said in found.said
    assert len(found.said) < 300


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        (USAGE, 2),
        ({"completion_tokens": 0}, 0),
        *((x, None) for x in (None, "2", {}, [], {"completion_tokens": None})),
        *(({"completion_tokens": x}, None) for x in ("2", -2, 2.0, True, math.nan, 10**12)),
    ],
)
def test_tokens_that_are_not_counted_are_not_known(usage, tokens):
    assert read(completion(usage=usage)) == Answer("a", None, tokens, "stop")


def test_what_a_server_may_leave_out_or_add():
    body = {"choices": [{"text": "a", "finish_reason": None, "logprobs": [1]}], "more": {"of": "it"}}
    assert read(body) == Answer("a", None, None, "stop")
    assert read({"choices": [{"message": {}}], "error": None}) == Answer("", None, None, "stop")


@pytest.mark.parametrize(
    ("said", "kept"),
    [("stop", "stop"), ("length", "length"), ("max_tokens", "length"), ("model_context_window_exceeded", "length"),
     ("content_filter", "content_filter"), ("content_filter: SAFETY", "content_filter"),
     ("sensitive", "content_filter"), ("end_turn", "stop"), ("", "stop")],
)  # fmt: skip
def test_why_an_answer_ended_is_kept(said, kept):
    assert read(completion(choices=[CHOICE | {"finish_reason": said}])) == Answer("a", None, 2, kept)


@pytest.mark.parametrize("said", ["error", "abort", "network_error", "insufficient_system_resource"])
def test_an_answer_that_the_server_broke_off_is_none(said):
    # What was written before is not looked at for a reason.
    half = CHOICE | {"finish_reason": said, "text": "the context length of a content filter"}
    assert read(completion(choices=[half])).kind == "error"


AZURE = refused(
    "The response was filtered due to the prompt triggering Azure OpenAI's content management policy. Please modify "
    "your prompt and retry.", type=None, param="prompt", code="content_filter", status=400,
    innererror={"code": "ResponsibleAIPolicyViolation", "content_filter_result": {"hate": {"filtered": True}}},
)  # fmt: skip
# In public reports: what a server sent, with which status, and what it is here.
REPORTED = {
    "vLLM, question and limit": (
        {"object": "error", "message": "This model's maximum context length is 131072 tokens. However, you requested "
         "351430 tokens. Please reduce the length of the messages or completion.", "code": 400}, 400, "context_length"),
    "vLLM, prompt": (
        {"object": "error", "message": "The decoder prompt (length 10127) is longer than the maximum model length of "
         "8192.", "type": "BadRequestError", "code": 400}, 400, "context_length"),
    "SGLang": (
        {"object": "error", "message": "The input (61709 tokens) is longer than the model's context length (40960 "
         "tokens).", "type": "BadRequestError", "param": None, "code": 400}, 400, "context_length"),
    "llama.cpp, 400": (refused("request (4390 tokens) exceeds the available context size (4096 tokens), try increasing "
                               "it", code=400, type="exceed_context_size_error"), 400, "context_length"),
    "llama.cpp, 500": (refused("the request exceeds the available context size.", code=500,
                               type="exceed_context_size_error"), 500, "context_length"),
    "llama.cpp, a full cache": (refused("Context size has been exceeded.", code=500, type="server_error"), 500, 500),
    "llama.cpp, 200": (refused("the request exceeds the available context size.", code=400,
                               type="exceed_context_size_error"), 200, "context_length"),
    "Anthropic": (refused("prompt is too long: 208310 tokens > 200000 maximum"), 400, "context_length"),
    "Gemini": ([{"error": {"code": 400, "message": "The input token count (1) exceeds the maximum number of tokens "
                           "allowed (0)."}}], 400, "context_length"),
    "Mistral behind OpenRouter": (completion(choices=[refused("Prompt is too long", code=400)]), 200, "context_length"),
    "Azure's filter": (AZURE, 400, "content_filter"),
    "Azure behind LiteLLM": (refused("litellm.ContentPolicyViolationError: AzureException - x", code="400"), 400,
                             "content_filter"),
    "OpenRouter's moderation": (refused("Your input was flagged", code=403, metadata={"reasons": ["x"]}), 403,
                                "content_filter"),
    "Gemini's filter": (chat(None, "content_filter: PROHIBITED_CONTENT"), 200, "content_filter"),
    "DeepSeek's filter": (refused("Content Exists Risk"), 400, "content_filter"),
    "OpenRouter, no choices": (completion(choices=None, usage=None) | refused("Provider returned error", code=429), 200,
                               429),
    "OpenRouter, in the choice": (completion(choices=[{"finish_reason": "error", "message": {"content": "a"},
                                  "error": {"code": 502, "message": "context length"}}]), 200, 502),
    "LM Studio, wrong path": ({"error": "Unexpected endpoint or method. (POST /chat/completions)"}, 200, 502),
    "a quota in a 200": (refused("Rate limit exceeded: free-models-per-day", code=429), 200, 429),
    "LiteLLM, something else": (refused("litellm.InternalServerError: x. content_policy_fallback=None. fallbacks=None"),
                                500, 500),
    "Mistral": ({"detail": [{"type": "extra_forbidden", "loc": ["body", "seed"], "msg": "Extra inputs are not "
                 "permitted", "input": 5}]}, 422, 422),
    "the prompt repeated": ({"detail": [{"msg": "Field required", "input": "the context length of a flagged content"}]},
                            422, 422),
    "a model that is not there": (refused("no model of this context length"), 404, 404),
}  # fmt: skip


@pytest.mark.parametrize(("body", "status", "found"), REPORTED.values(), ids=REPORTED)
def test_a_refusal_that_cannot_pass_is_told_from_one_that_may(body, status, found):
    reply = read(body, status)
    assert isinstance(reply, Failure)
    if isinstance(found, str):
        assert (reply.kind, reply.status) == (found, 400)  # which is not tried again, whatever it was
    else:
        assert (reply.kind, reply.status) == ("error", found)
    assert reply.everyone == (found in (404, 429))


def test_reasoning_is_kept_apart_from_the_answer():
    for name in ("reasoning", "reasoning_content"):
        assert read(chat({"content": None, name: "so 4"})) == Answer("", "so 4", 2, "stop")
        assert read(chat({"content": "4", name: "so 4"}, "length")) == Answer("4", "so 4", 2, "length")
        assert read(chat({"content": "4", name: ""})) == Answer("4", None, 2, "stop")
    assert read(chat({"content": "4", "reasoning": {"effort": 1}})) == Answer("4", None, 2, "stop")
    magistral = [{"type": "thinking", "thinking": [{"type": "text", "text": "so 4"}]}, {"type": "text", "text": "4"}]
    assert read(chat({"content": magistral})) == Answer("4", "so 4", 2, "stop")


WORDS = ["choices", "message", "content", "text", "error", "code", "usage", "completion_tokens", "finish_reason",
         "reasoning", "thinking", "type", "detail", "stop", "length", "error", "content_filter"]  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(WORDS) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=4),
    max_leaves=12,
)
CHOSEN = st.fixed_dictionaries({"message": JSON, "finish_reason": JSON}, optional={"error": JSON, "text": JSON})


@given(JSON | st.fixed_dictionaries({"choices": CHOSEN.map(lambda c: [c])}, optional={"error": JSON, "usage": JSON}),
       st.sampled_from([200, 201, 204, 304, 400, 403, 404, 429, 500, 503]))  # fmt: skip
def test_whatever_is_sent_is_an_answer_or_a_failure(body, status):
    found = read(body, status)
    if isinstance(found, Answer):
        assert isinstance(found.text, str)
    else:
        assert found.status >= 300
    assert status < 300 or isinstance(found, Failure)
