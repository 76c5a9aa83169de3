"""What a careful user of transformers does to a conversation in the OpenAI API's shape before `apply_chat_template`: the reference for
what `rein serve` makes of it. What a template understands is found by trying it, with transformers."""
import json
import re

TEXT, ARGUMENTS = "xqzprobe", '{"xqzkey": "xqzvalue"}'
WITH_CONTENT = ("user", "system", "developer", "tool")


def by_key(value):
    """Keys sorted, as Kimi K2.5's tokenizer does to tools."""
    if isinstance(value, dict):
        return {key: by_key(value[key]) for key in sorted(value)}
    return [by_key(item) for item in value] if isinstance(value, list) else value


class Careful:
    def __init__(self, source, render):
        """`render(messages)` gives the prompt, or None where the template refuses."""
        self.source, self.render = source, render
        user = self.lists(lambda content: [{"role": "user", "content": content}])
        asked = {"role": "user", "content": "Hi"}
        tried = {
            "system": lambda content: [{"role": "system", "content": content}, asked],
            "assistant": lambda content: [asked, {"role": "assistant", "content": content}, asked],
            "tool": lambda content: [*self.calling({"a": "b"}), {"role": "tool", "tool_call_id": "abcdefghi", "name": "f", "content": content}],
        }
        self.part_lists = {role: user if (found := self.lists(build)) is None else found for role, build in tried.items()}
        self.part_lists.update(user=user, developer=self.part_lists["system"])
        as_string = render(self.calling(ARGUMENTS))
        if as_string and "xqzkey" in as_string:
            self.string_arguments = ARGUMENTS in as_string
        elif render(self.calling(json.loads(ARGUMENTS))):
            self.string_arguments = False
        else:
            self.string_arguments = bool(re.search(r"arguments(']|\"])? is string", source))

    @staticmethod
    def calling(arguments):
        call = {"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": arguments}}
        return [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "", "tool_calls": [call]}]

    def lists(self, conversation):
        """Whether parts can be given as they are; None: the role is not shown at all."""
        if TEXT not in (self.render(conversation(TEXT)) or ""):
            return None
        parts = self.render(conversation([{"type": "text", "text": TEXT}])) or ""
        return TEXT in parts and not re.search(r"\\?[\"']type", parts)

    def conversation(self, messages):
        """The messages to pass; ValueError for those that no careful user passes."""
        return [self.message(message) for message in messages]

    def message(self, message):
        message = {name: value for name, value in message.items() if value is not None}
        role, content = message["role"], message.get("content")
        if content is None and role in WITH_CONTENT:
            raise ValueError("no content")
        if isinstance(content, list) and not self.part_lists.get(role, self.part_lists["user"]) and all(part["type"] == "text" for part in content):
            message["content"] = "\n".join(part["text"] for part in content)
        if message.get("tool_calls") and not self.string_arguments:
            message["tool_calls"] = [self.parsed(call) for call in message["tool_calls"]]
        return message

    @staticmethod
    def parsed(call):
        function = call.get("function", call)
        if not isinstance(function.get("arguments"), str):
            return call
        function = {**function, "arguments": json.loads(function["arguments"] or "{}")}
        return {**call, "function": function} if "function" in call else function

    def tools(self, tools):
        tools = tools or None
        # Its tokenizer sorts them, and declares them in TypeScript; that declaration has golden data of its own.
        return by_key(tools) if tools and "tools_ts_str" in self.source else tools
