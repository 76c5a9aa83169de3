"""Prepares conversations of the OpenAI API for `apply_chat_template`, as a careful user of transformers does. This is the
reference for `rein serve`. It finds out what a template supports by rendering probes with transformers."""
import json
import re

TEXT, ARGUMENTS = "xqzprobe", '{"xqzkey": "xqzvalue"}'
WITH_CONTENT = ("user", "system", "developer", "tool")


def by_key(value):
    """Sorts keys, as Kimi K2.5's tokenizer does for tools."""
    if isinstance(value, dict):
        return {key: by_key(value[key]) for key in sorted(value)}
    return [by_key(item) for item in value] if isinstance(value, list) else value


class Careful:
    def __init__(self, source, render):
        """`render(messages)` returns the prompt, or None if the template raises."""
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
        as_string, as_object = render(self.calling(ARGUMENTS)), render(self.calling(json.loads(ARGUMENTS)))
        if as_string and "xqzkey" in as_string:
            # A template that writes arguments neither as JSON nor as a dict needs objects.
            as_dict = as_object is None or re.search(r"""\{\s*(\\?["'])xqzkey\1:\s*\1xqzvalue\1\s*\}""", as_object)
            self.string_arguments = ARGUMENTS in as_string and bool(as_dict)
        elif as_object:
            self.string_arguments = False
        else:
            self.string_arguments = bool(re.search(r"arguments(']|\"])? is string", source))
        # A template that prints an object as Python does needs JSON.
        writes_json = as_object is not None and any(form in as_object for form in (ARGUMENTS, ARGUMENTS.replace(" ", "")))
        self.object_arguments = writes_json or not self.string_arguments

        self.no_content = {kind: self.absent(tries) for kind, tries in self.without_content().items()}

    def without_content(self):
        """Conversations with messages without content, by the other members of these messages."""
        arguments = ARGUMENTS if self.string_arguments else json.loads(ARGUMENTS)
        user, answer = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}
        one, two = "abcdefghi", "abcdefghj"
        tool = {"type": "function", "function": {"name": "f", "description": "", "parameters": {}}}

        def calls(*ids, **more):
            made = [{"id": id, "type": "function", "function": {"name": "f", "arguments": arguments}} for id in ids]
            return {"role": "assistant", "tool_calls": made, **more}

        def result(id):
            return {"role": "tool", "tool_call_id": id, "name": "f", "content": "1"}

        return {
            "calls": [[user, calls(one)], [user, calls(one), result(one)], [user, calls(one), result(one), answer, user],
                      [user, calls(one), result(one), calls(two), result(two)],
                      [user, calls(one, reasoning_content=TEXT), result(one), answer, user], [user, calls(one, reasoning_content=TEXT), result(one)],
                      [user, calls(one, two), result(one), result(two), answer, user]],
            "declarations": [[{"role": "system", "tools": [tool]}, user]],
            "other": [[user, {"role": "assistant"}, user], [user, {"role": "assistant", "reasoning_content": TEXT}, user],
                      [user, {"role": "assistant"}], [user, {"role": "assistant", "reasoning_content": TEXT}]],
        }

    def absent(self, conversations):
        """The fields to send for content that is null or missing: those with which the most conversations render without printing
        a null. null is chosen only if it renders differently from an empty text."""
        candidates = [{"content": None}, {"content": ""}, {}]
        prompts = [[self.render([message if "content" in message else {**message, **fields} for message in messages]) for messages in conversations]
                   for fields in candidates]

        def spelled(prompt):
            return prompt.count("None") + prompt.count("null")

        def good(prompts_of_one):
            fewest = [min((spelled(prompt) for prompt in tried if prompt is not None), default=None) for tried in zip(*prompts)]
            return sum(prompt is not None and spelled(prompt) == least for prompt, least in zip(prompts_of_one, fewest))

        null, empty, missing = map(good, prompts)
        if missing > max(null, empty):
            return candidates[2]
        return candidates[0] if null > empty or (null == empty and prompts[0] != prompts[1]) else candidates[1]

    @staticmethod
    def calling(arguments):
        call = {"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": arguments}}
        return [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "", "tool_calls": [call]}]

    def lists(self, conversation):
        """Whether the template supports lists of parts for a role. None if it does not render the role."""
        if TEXT not in (self.render(conversation(TEXT)) or ""):
            return None
        parts = self.render(conversation([{"type": "text", "text": TEXT}])) or ""
        return TEXT in parts and not re.search(r"\\?[\"']type", parts)

    def conversation(self, messages):
        """The messages to pass. ValueError for messages that a careful user does not pass."""
        return [self.message(message) for message in messages]

    def message(self, message):
        message = {name: value for name, value in message.items() if value is not None or name == "content"}
        role, content = message["role"], message.get("content")
        if content is None:
            kind = "calls" if message.get("tool_calls") else "declarations" if message.get("tools") else "other"
            if role in WITH_CONTENT and kind != "declarations":
                raise ValueError("no content")
            instead = self.no_content[kind]
            if not instead:
                message.pop("content", None)
            message |= instead
        if isinstance(content, list) and not self.part_lists.get(role, self.part_lists["user"]) and all(part["type"] == "text" for part in content):
            message["content"] = "\n".join(part["text"] for part in content)
        if message.get("tool_calls") and not self.string_arguments:
            message["tool_calls"] = [self.parsed(call) for call in message["tool_calls"]]
        elif message.get("tool_calls") and not self.object_arguments:
            message["tool_calls"] = [self.dumped(call) for call in message["tool_calls"]]
        return message

    @staticmethod
    def dumped(call):
        arguments = call.get("function", {}).get("arguments")
        if not isinstance(arguments, dict):
            return call
        return {**call, "function": {**call["function"], "arguments": json.dumps(arguments, ensure_ascii=False)}}

    @staticmethod
    def parsed(call):
        function = call.get("function", call)
        if not isinstance(function.get("arguments"), str):
            return call
        function = {**function, "arguments": json.loads(function["arguments"] or "{}")}
        return {**call, "function": function} if "function" in call else function

    def tools(self, tools):
        tools = tools or None
        # Kimi K2.5's tokenizer sorts tools and declares them in TypeScript. The declaration has its own golden data.
        return by_key(tools) if tools and "tools_ts_str" in self.source else tools
