"""OpenAI's protocol, spoken over a real connection."""

import asyncio
import copy
import gc
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tenxgraph_temporal.runtime.errors import GraphDefinitionError
from tenxgraph_temporal.runtime.models import ModelNode, OpenAIChat, call
from tenxgraph_temporal.runtime.state import AgentState, Message
from tenxgraph_temporal.runtime.state.blocks import (
    AudioBlock,
    ContentBlock,
    DataBlock,
    DocumentBlock,
    ErrorBlock,
    ImageBlock,
    MediaRef,
    ReasoningBlock,
    TextBlock,
    ToolResultBlock,
    VideoBlock,
)

from ..support import provider as providers
from ..support.chat import LOOK_UP, results, user
from ..support.provider import Provider


@pytest.fixture
def provider() -> Iterator[Provider]:
    with providers.provider() as serving:
        yield serving


def chat(provider: Provider, **options: Any) -> OpenAIChat:
    return OpenAIChat("some-model", base_url=provider.url, api_key="secret", **options)


async def test_request_and_reply_of_a_plain_turn(provider: Provider) -> None:
    provider.extra["usage"] = {
        "prompt_tokens": 11,
        "completion_tokens": 7,
        "total_tokens": 18,
        "prompt_tokens_details": {"cached_tokens": 4, "audio_tokens": 1},
        "completion_tokens_details": {"reasoning_tokens": 5, "audio_tokens": 2},
    }
    node = ModelNode(chat(provider, temperature=0, parallel_tool_calls=False), system_prompt="Be kind.")
    reply = await node(AgentState(context=[user("hello")]), {})
    assert provider.requests == [
        {
            "model": "some-model",
            "temperature": 0,
            "messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "hello"}],
        }
    ]
    assert provider.headers[0]["path"] == "/v1/chat/completions"
    assert provider.headers[0]["authorization"] == "Bearer secret"
    assert (reply.role, reply.text(), reply.tools_calls, reply.raw) == ("assistant", "hi", None, None)
    assert reply.usages is not None
    assert reply.usages.model_dump() == {
        "completion_tokens": 7,
        "prompt_tokens": 11,
        "total_tokens": 18,
        "reasoning_tokens": 5,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 4,
        "image_tokens": 0,
        "audio_tokens": 3,
    }
    assert reply.metadata == {
        "provider": "openai",
        "model": "served-model",
        "response_id": "chatcmpl-1",
        "finish_reason": "stop",
    }


@pytest.mark.parametrize("usage", [{}, {"usage": None}, {"usage": {"prompt_tokens": 1, "completion_tokens": 2}}])
async def test_usage_may_be_missing_or_incomplete(provider: Provider, usage: dict[str, Any]) -> None:
    provider.extra.update(usage)
    reply = await chat(provider)([user()], [])
    if usage.get("usage"):
        assert reply.usages is not None
        assert (reply.usages.prompt_tokens, reply.usages.total_tokens) == (1, 3)
    else:
        assert reply.usages is None


async def test_parallel_calls_and_their_results_go_around(provider: Provider) -> None:
    calls = [
        {"id": f"call_{n}", "type": "function", "function": {"name": "look_up", "arguments": f'{{"order": "{n}"}}'}}
        for n in (1, 2, 3)
    ]
    provider.message = {"content": None, "tool_calls": calls}
    provider.finish_reason = "tool_calls"
    model = chat(provider, parallel_tool_calls=True)
    asked = await model([user()], [LOOK_UP])
    assert provider.requests[-1]["tools"] == [LOOK_UP]
    assert provider.requests[-1]["parallel_tool_calls"] is True
    assert asked.tools_calls == calls
    assert asked.content == []

    several = results(
        ToolResultBlock(call_id="call_3", output={"cents": 5}),
        ToolResultBlock(call_id="call_1", output="one"),
        ToolResultBlock(call_id="call_2", output="no such order", is_error=True, status="failed"),
        ErrorBlock(message="no such order"),
    )
    await model([user(), asked, several], [LOOK_UP])
    assert provider.sent()[1:] == [
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "call_1", "content": "one"},
        {"role": "tool", "tool_call_id": "call_2", "content": "Error: no such order"},
        {"role": "tool", "tool_call_id": "call_3", "content": '{"cents":5}'},
    ]


def asks(*ids: str) -> Message:
    return Message(role="assistant", tools_calls=[{**call("t"), "id": item} for item in ids])


def answer(call_id: str, output: Any = "ok") -> Message:
    return results(ToolResultBlock(call_id=call_id, output=output))


@pytest.mark.parametrize(
    ("conversation", "expected"),
    [
        pytest.param(
            [user(), asks("c1"), answer("c1", "a"), asks("c1"), answer("c1", "b")],
            ["user", "assistant", "tool:c1:a", "assistant", "tool:c1:b"],
            id="an id used again in the next turn",
        ),
        pytest.param(
            [user(), asks("c1", "c2"), answer("c2"), user("stop"), answer("c1", "late")],
            ["user", "assistant", "tool:c1:late", "tool:c2:ok", "user"],
            id="results out of order and after other messages",
        ),
        pytest.param(
            [user(), asks("c1", "c2"), answer("c1"), user("go on")],
            ["user", "assistant", "tool:c1:ok", "tool:c2:There is no result: the call was not carried out.", "user"],
            id="a call that was never run",
        ),
        pytest.param([answer("c0"), user()], ["user"], id="a result whose call was cut off"),
    ],
)
async def test_every_call_sent_is_followed_by_its_result(
    provider: Provider, conversation: list[Message], expected: list[str]
) -> None:
    before = copy.deepcopy(conversation)
    await chat(provider)(conversation, [])
    assert [
        f"tool:{m['tool_call_id']}:{m['content']}" if m["role"] == "tool" else m["role"] for m in provider.sent()
    ] == expected
    assert conversation == before


DATA = "iVBORw0KGgo="


@pytest.mark.parametrize(
    ("block", "part"),
    [
        (
            ImageBlock(media=MediaRef(url="https://e.com/a.png")),
            {"type": "image_url", "image_url": {"url": "https://e.com/a.png"}},
        ),
        (
            ImageBlock(media=MediaRef(kind="data", data_base64=DATA, mime_type="image/jpeg")),
            {"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{DATA}"}},
        ),
        (
            AudioBlock(media=MediaRef(kind="data", data_base64=DATA, mime_type="audio/mpeg")),
            {"type": "input_audio", "input_audio": {"data": DATA, "format": "mp3"}},
        ),
        (
            AudioBlock(media=MediaRef(kind="data", data_base64=DATA)),
            {"type": "input_audio", "input_audio": {"data": DATA, "format": "wav"}},
        ),
        (
            DocumentBlock(media=MediaRef(kind="file_id", file_id="file-1")),
            {"type": "file", "file": {"file_id": "file-1"}},
        ),
        (
            DocumentBlock(media=MediaRef(kind="data", data_base64=DATA, filename="a.pdf")),
            {"type": "file", "file": {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{DATA}"}},
        ),
        (
            DataBlock(mime_type="image/png", data_base64=DATA),
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{DATA}"}},
        ),
        (VideoBlock(media=MediaRef(url="https://e.com/v.mp4")), "[video: https://e.com/v.mp4]"),
        (AudioBlock(media=MediaRef(url="https://e.com/a.mp3"), transcript="la la"), "la la"),
        (AudioBlock(media=MediaRef(url="https://e.com/a.mp3")), "[audio: https://e.com/a.mp3]"),
        (DocumentBlock(media=MediaRef(url="https://e.com/a.pdf"), text="the text"), "the text"),
        (DataBlock(mime_type="application/zip", data_base64=DATA), "[data: application/zip]"),
        (ErrorBlock(message="boom"), "[error: boom]"),
        (ReasoningBlock(summary="hm"), ""),
    ],
)
async def test_each_block_of_a_user_message(provider: Provider, block: ContentBlock, part: Any) -> None:
    await chat(provider)([Message(role="user", content=[TextBlock(text="see: "), block])], [])
    content = provider.sent()[0]["content"]
    if isinstance(part, str):
        assert content == "see: " + part
    else:
        assert content == [{"type": "text", "text": "see: "}, part]


@pytest.mark.parametrize(
    ("output", "text", "has_media"),
    [
        ([{"type": "text", "text": "a"}, {"type": "image", "media": {"url": "u"}}], "a[image: u]", True),
        ({"type": "image", "media": {"url": "u"}}, "[image: u]", True),
        ({"type": "text", "text": "a", "lang": "en"}, '{"type":"text","text":"a","lang":"en"}', False),
        ({"type": "error", "message": "m", "code": 3}, '{"type":"error","message":"m","code":3}', False),
        ([], "[]", False),
        (None, "null", False),
        (3, "3", False),
    ],
)
async def test_what_tools_return_is_text_and_their_media_follow(
    provider: Provider, output: Any, text: str, has_media: bool
) -> None:
    await chat(provider)([user(), asks("c1"), answer("c1", output)], [])
    assert provider.sent()[2] == {"role": "tool", "tool_call_id": "c1", "content": text}
    media = {
        "role": "user",
        "content": [{"type": "text", "text": "From the tools:"}, {"type": "image_url", "image_url": {"url": "u"}}],
    }
    assert provider.sent()[3:] == ([media] if has_media else [])


async def test_refusal_is_the_reply(provider: Provider) -> None:
    provider.message = {"content": None, "refusal": "I will not."}
    reply = await chat(provider)([user()], [])
    assert reply.text() == reply.metadata["refusal"] == "I will not."
    await chat(provider)([user(), reply, user("why?")], [])
    assert provider.sent()[1] == {"role": "assistant", "content": "I will not."}


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
async def test_reasoning_goes_back_with_calls_to_who_sent_it(provider: Provider, name: str) -> None:
    made = [{"id": "c1", "type": "function", "function": {"name": "t", "arguments": "{}"}, "extra_content": {"s": 1}}]
    provider.message = {"content": "", name: "thinking", "tool_calls": made}
    reply = await chat(provider)([user()], [])
    assert reply.reasoning == "thinking"
    assert reply.text() == ""
    stored = Message.model_validate_json(reply.model_dump_json())
    await chat(provider)([user(), stored, answer("c1"), Message(role="assistant", content="x", reasoning="y")], [])
    assert provider.sent()[1] == {"role": "assistant", "content": None, "tool_calls": made, name: "thinking"}
    assert provider.sent()[3] == {"role": "assistant", "content": "x"}


async def test_spoken_reply(provider: Provider) -> None:
    provider.message = {"audio": {"id": "a1", "data": DATA, "expires_at": 1, "transcript": "la la"}}
    reply = await chat(provider, modalities=["text", "audio"], audio={"voice": "x", "format": "mp3"})([user()], [])
    block = reply.content[0]
    assert isinstance(block, AudioBlock)
    assert (block.media.data_base64, block.media.mime_type, block.transcript) == (DATA, "audio/mp3", "la la")
    await chat(provider)([user(), reply], [])
    assert provider.sent()[1] == {"role": "assistant", "content": "la la"}


async def test_raw_reply_is_kept_on_request(provider: Provider) -> None:
    reply = await chat(provider, keep_raw=True)([user()], [])
    assert reply.raw is not None
    assert reply.raw["choices"][0]["message"]["content"] == "hi"
    json.dumps(reply.raw)


@pytest.mark.parametrize(
    ("status", "error"),
    [(429, openai.RateLimitError), (500, openai.InternalServerError), (400, openai.BadRequestError)],
)
@pytest.mark.parametrize("given", [False, True], ids=["own client", "given client"])
async def test_errors_come_through_after_one_request(
    provider: Provider, status: int, error: type[Exception], given: bool
) -> None:
    """Retries are the node's; the package's own two would multiply them."""
    provider.status = status
    if given:
        async with openai.AsyncOpenAI(base_url=provider.url, api_key="x", max_retries=2) as client:
            with pytest.raises(error):
                await OpenAIChat("m", client=client)([user()], [])
            assert client.max_retries == 2, "the caller's client stays as it is"
    else:
        with pytest.raises(error):
            await chat(provider)([user()], [])
    assert len(provider.requests) == 1


async def test_a_hanging_provider_is_left_at_the_timeout(provider: Provider) -> None:
    provider.delay = threading.Event()
    with pytest.raises(openai.APITimeoutError):
        await chat(provider, timeout=0.2)([user()], [])
    assert len(provider.requests) == 1


async def test_a_reply_without_choices_says_what_came(provider: Provider) -> None:
    provider.extra = {"choices": [], "error": {"message": "overloaded"}}
    with pytest.raises(ValueError, match=r"no choices.*overloaded"):
        await chat(provider)([user()], [])


async def test_a_web_page_is_no_reply(provider: Provider) -> None:
    provider.page = "<html>Welcome</html>"
    with pytest.raises(ValueError, match=r"is base_url right\? <html>Welcome"):
        await chat(provider)([user()], [])


def test_one_model_serves_several_event_loops(provider: Provider) -> None:
    model = chat(provider)
    for _ in range(2):
        assert asyncio.run(model([user()], [])).text() == "hi"
    assert len(provider.requests) == 2


async def test_a_model_that_is_collected_starts_nothing(provider: Provider) -> None:
    """The collector may run inside a workflow, where a foreign task is refused."""
    await chat(provider)([user()], [])
    before = asyncio.all_tasks()
    gc.collect()
    assert asyncio.all_tasks() == before


@pytest.mark.parametrize("option", ["messages", "tools", "stream", "n"])
def test_options_that_are_not_the_authors_are_refused(option: str) -> None:
    with pytest.raises(GraphDefinitionError, match=f"{option}= cannot be set"):
        OpenAIChat("m", **{option: True})  # type: ignore[arg-type]


async def test_a_client_has_its_own_address() -> None:
    async with openai.AsyncOpenAI(api_key="x") as client:
        with pytest.raises(GraphDefinitionError, match="give base_url and api_key to the client"):
            OpenAIChat("m", client=client, base_url="http://localhost")


def test_without_the_extra_the_package_imports_and_names_it() -> None:
    code = (
        "import sys; sys.modules['openai'] = None\n"
        "from tenxgraph_temporal.runtime.models import OpenAIChat, ScriptedModel\n"
        "ScriptedModel(['hi'])\n"
        "try:\n    OpenAIChat('m')\n"
        "except ImportError as exc:\n    print(exc)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install 'tenxgraph-temporal[openai]'" in done.stdout, done.stderr
