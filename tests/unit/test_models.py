"""A model in a graph: what it is sent, what becomes of its reply."""

import asyncio
import functools
import json
from collections.abc import Sequence
from typing import Any

import pytest

from tenxgraph_temporal.runtime.errors import GraphDefinitionError
from tenxgraph_temporal.runtime.graph.node import Node
from tenxgraph_temporal.runtime.limits import UNSET
from tenxgraph_temporal.runtime.models import ModelNode, ScriptedModel, ScriptExhausted, ToolCalls, call
from tenxgraph_temporal.runtime.state import AgentState, Message
from tenxgraph_temporal.runtime.state.blocks import ToolResultBlock
from tenxgraph_temporal.runtime.tools import ToolNode

from ..support.chat import LOOK_UP, look_up, results, user


def said(text: str) -> Message:
    return Message.text_message(text, role="assistant")


# --- ModelNode ----------------------------------------------------------------------------------------------


class Recorder:
    """A model that keeps what it was sent."""

    def __init__(self, reply: Any = "hi") -> None:
        self.reply = reply
        self.messages: list[Message] = []
        self.tools: list[dict[str, Any]] = []

    async def __call__(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> Any:
        self.messages, self.tools = list(messages), list(tools)
        return self.reply


@pytest.mark.parametrize(
    ("system_prompt", "summary", "expected"),
    [
        (None, None, []),
        ("Be kind.", None, ["Be kind."]),
        (None, "They met.", ["Summary of the conversation so far:\nThey met."]),
        ("Be kind.", "They met.", ["Be kind.\n\nSummary of the conversation so far:\nThey met."]),
    ],
)
async def test_model_is_sent_prompt_summary_and_context(
    system_prompt: str | None, summary: str | None, expected: list[str]
) -> None:
    model = Recorder()
    state = AgentState(context=[user("a"), said("b"), user("c")], context_summary=summary)
    reply = await ModelNode(model, system_prompt=system_prompt)(state, {})
    assert [(m.role, m.text()) for m in model.messages] == [
        *(("system", text) for text in expected),
        ("user", "a"),
        ("assistant", "b"),
        ("user", "c"),
    ]
    assert model.tools == []
    assert (reply.role, reply.text()) == ("assistant", "hi")
    assert len(state.context) == 3, "the reply is returned, not added here"


async def test_tools_are_read_from_the_tool_node_at_each_call() -> None:
    model, tools = Recorder(), ToolNode([look_up])
    node = ModelNode(model, tools=tools)
    await node(AgentState(), {})
    assert model.tools == [LOOK_UP]
    tools.add_tool(said)
    await node(AgentState(), {})
    assert [item["function"]["name"] for item in model.tools] == ["look_up", "said"]
    await ModelNode(model, tools=[LOOK_UP])(AgentState(), {})
    assert model.tools == [LOOK_UP]


async def test_a_reply_never_takes_the_id_of_an_old_message() -> None:
    reply = said("again")
    node = ModelNode(Recorder(reply))
    state = AgentState(context=[user()])
    first = await node(state, {})
    assert first.message_id == reply.message_id
    state.context.append(first)
    second = await node(state, {})
    assert second.message_id != first.message_id
    assert second.text() == "again"


def blocking(messages: Any, tools: Any) -> str:
    return "hi"


@pytest.mark.parametrize("model", [blocking, lambda m, t: "hi", functools.partial(blocking), "gpt", None])
def test_a_model_that_is_not_async_is_refused_with_the_remedy(model: Any) -> None:
    with pytest.raises(GraphDefinitionError, match=r"async def model.*asyncio.to_thread"):
        ModelNode(model)


@pytest.mark.parametrize("tools", [[look_up], "look_up", 3, {"a": 1}])
def test_tools_that_are_no_schemas_are_refused(tools: Any) -> None:
    with pytest.raises(GraphDefinitionError, match="pass the ToolNode itself"):
        ModelNode(Recorder(), tools=tools)


@pytest.mark.parametrize("reply", [user(), None, {"role": "assistant"}, ["a"]])
async def test_a_reply_that_is_no_assistant_message_is_an_error(reply: Any) -> None:
    with pytest.raises(TypeError, match="return an assistant Message or text"):
        await ModelNode(Recorder(reply))(AgentState(), {})


def test_a_graph_takes_it_as_an_async_node() -> None:
    node = Node.of("model", ModelNode(Recorder()), timeout=UNSET, retry=None, task_queue=None)
    assert node.is_async
    assert node.arguments == {"state": "state", "config": "config"}


# --- ScriptedModel ------------------------------------------------------------------------------------------


SCRIPT: list[str | Message | ToolCalls] = [
    [call("look_up", order="1"), call("look_up", order="2")],
    "found",
    [call("refund", order="1")],
    said("done"),
]


async def test_script_goes_on_in_any_process_at_any_place() -> None:
    context = [user()]
    for index in range(len(SCRIPT)):
        # A model of its own for each reply, as after a crash; the same reply again, as in a second attempt.
        one, other = await ScriptedModel(SCRIPT)(context, []), await ScriptedModel(SCRIPT)(context, [])
        assert one.message_id != other.message_id
        assert one.model_dump(exclude={"message_id", "timestamp"}) == other.model_dump(
            exclude={"message_id", "timestamp"}
        ), f"reply {index}"
        context.append(one)
        if one.tools_calls:
            context.append(results(*(ToolResultBlock(call_id=c["id"], output="ok") for c in one.tools_calls)))
        elif index == 1:
            context.append(user("refund it"))
    assert [[c["id"] for c in m.tools_calls or ()] for m in context if m.role == "assistant"] == [
        ["call_1", "call_2"],
        [],
        ["call_1"],
        [],
    ]
    with pytest.raises(ScriptExhausted, match="has 4 replies, and the conversation asks for number 5"):
        await ScriptedModel(SCRIPT)(context, [])


async def test_script_may_repeat_for_each_user_message() -> None:
    model = ScriptedModel(["one", "two"], repeat=True)
    context = [user(), said("one"), said("two"), user()]
    assert (await model(context, [])).text() == "one"
    assert (await model([*context, said("one")], [])).text() == "two"
    with pytest.raises(ScriptExhausted):
        await model([*context, said("one"), said("two")], [])


async def test_changing_a_reply_does_not_change_the_script() -> None:
    model = ScriptedModel(SCRIPT)
    first = await model([user()], [])
    assert first.tools_calls is not None
    first.tools_calls[0]["function"]["name"] = "other"
    again = await model([user()], [])
    assert again.tools_calls is not None
    assert again.tools_calls[0] == {
        "id": "call_1",
        "type": "function",
        "function": {"name": "look_up", "arguments": '{"order": "1"}'},
    }


def test_a_call_takes_arguments_of_any_name_and_keeps_an_id() -> None:
    assert json.loads(call("t", name="n", self=1, id=2)["function"]["arguments"]) == {"name": "n", "self": 1, "id": 2}
    model = ScriptedModel([[{**call("t"), "id": "mine"}, call("t")]])
    message = asyncio.run(model([user()], []))
    assert [c["id"] for c in message.tools_calls or ()] == ["mine", "call_2"]


@pytest.mark.parametrize("reply", [3, [], [1], user(), None, {}])
def test_a_reply_of_no_known_kind_is_refused_with_its_place(reply: Any) -> None:
    with pytest.raises(GraphDefinitionError, match="reply 1 is"):
        ScriptedModel(["fine", reply])


def test_a_script_is_a_list() -> None:
    with pytest.raises(GraphDefinitionError, match="list of replies"):
        ScriptedModel("hello")
