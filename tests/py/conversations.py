"""The conversations of the template battery: message lists, tool lists and keyword arguments, and how they are combined."""
import itertools

BLANKS = "\u00a0\u3000\x1c\u2028"


def user(content, **more):
    return {"role": "user", "content": content, **more}


def system(content):
    return {"role": "system", "content": content}


def assistant(content, **more):
    return {"role": "assistant", "content": content, **more}


def call(name, arguments, call_id="call_1"):
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def calls(*tool_calls, content=None, **more):
    return {"role": "assistant", "content": content, "tool_calls": list(tool_calls), **more}


def result(content, call_id="call_1", **more):
    return {"role": "tool", "tool_call_id": call_id, "content": content, **more}


def text(*parts):
    return [{"type": "text", "text": part} for part in parts]


ASK = user("What is the weather in Paris?")
WEATHER = {"city": "Paris", "days": 3}
NESTED = {"where": {"city": "Zürich", "tags": ["a", {"b": [1, 2, {"c": None}]}]}, "empty": {}, "none": [], "quote": "say \"hi\"\n\\ </tool_call>"}
NUMBERS = {"one": 1.0, "large": 1e20, "small": 1e-7, "zero": -0.0, "sixteen": 1e16, "odd": 0.1, "safe": 2**53 + 1, "wide": 2**64, "huge": 10**30,
           "negative": -5, "yes": True, "no": False, "null": None, "list": [], "object": {}}


def loop(arguments=WEATHER, answer="It is sunny.", ids=("call_1", "call_2")):
    return [ASK, calls(call("get_weather", arguments, ids[0])), result('{"temp": 21}', ids[0], name="get_weather"),
            calls(call("get_weather", {"city": "Rome"}, ids[1])), result("22", ids[1], name="get_weather"), assistant(answer)]


def by_sdk(*tool_calls):
    """A message as `message.model_dump()` of the OpenAI SDK returns it."""
    return {"content": None, "refusal": None, "role": "assistant", "annotations": None, "audio": None, "function_call": None, "tool_calls": list(tool_calls)}


SDK = [ASK, by_sdk(call("get_weather", '{"city": "Paris"}', "abcDEF121")), result("21", "abcDEF121"),
       by_sdk(call("get_weather", '{"city": "Rome"}', "abcDEF122"), call("now", "{}", "abcDEF123")), result("22", "abcDEF122"), result("noon", "abcDEF123")]

MESSAGES = {
    "user": [user("Hello")],
    "system": [system("You are terse."), user("Hello")],
    "turns": [system("S"), user("one"), assistant("two"), user("three"), assistant("four"), user("five")],
    "ends_with_assistant": [user("Hello"), assistant("Hi there")],
    "blanks": [system("  S \n"), user(" \n lead and trail \t\n"), assistant("\n\nanswer  \n"), user("x ")],
    "newlines": [user("a\r\nb\rc\nd"), assistant("e\r\n"), user("\r\n")],
    "unicode_blanks": [system(BLANKS + "s" + BLANKS), user(BLANKS + "u" + BLANKS), assistant(BLANKS + "a" + BLANKS), user("z")],
    "scripts": [user("北京 🇫🇷 👩‍👩‍👧 e\u0301 İstanbul ß ﬁ \x00\x07\x7f\u200b")],
    "markup": [user("<b>&amp;'\"</b> {{ 7 * 7 }} {% if x %} {# no #} `code` \\n \\\\")],
    "empty_user": [user(""), assistant(""), user("")],
    "string_arguments": [ASK, calls(call("get_weather", '{"city": "Paris", "days": 3}'))],
    "object_arguments": [ASK, calls(call("get_weather", WEATHER))],
    "no_arguments": [ASK, calls(call("now", {})), result("noon")],
    "empty_string_arguments": [ASK, calls(call("now", "")), result("noon")],
    "empty_object_string": [ASK, calls(call("now", "{}")), result("noon")],
    "call_content_empty": [ASK, calls(call("get_weather", WEATHER), content=""), result("21")],
    "call_content_missing": [ASK, {"role": "assistant", "tool_calls": [call("get_weather", WEATHER)]}, result("21")],
    "sdk_history": [system("Use tools."), *SDK, assistant("Done.", refusal=None, tool_calls=None), user("And now?")],
    "sdk_history_ends_with_results": [*SDK],
    "sdk_history_empty_content": [dict(message, content="") if message.get("tool_calls") else message for message in SDK] + [user("And now?")],
    "sdk_history_without_content": [{name: value for name, value in message.items() if value is not None} for message in SDK] + [user("And now?")],
    "sdk_history_user_goes_on": [*SDK[:3], user("Stop, what about Rome?"), *SDK[3:], user("Thanks")],
    "silent_assistant": [user("Hi"), assistant(None), user("Are you there?"), {"role": "assistant"}, user("?")],
    "reasoning_without_content": [ASK, assistant(None, reasoning_content="Hm."), user("So?"), {"role": "assistant", "reasoning_content": "Still."}],
    "text_and_call": [ASK, calls(call("get_weather", WEATHER), content="Let me look."), result("21"), user("And Rome?")],
    "kimi_ids": loop(ids=("functions.get_weather:0", "functions.get_weather:1")),
    "nine_character_ids": loop(ids=("abcDEF123", "zyxWVU987")),
    "long_ids": loop(ids=("call_A1b2C3d4E5f6G7h8", "call_Z9y8X7w6V5u4T3s2")),
    "result_without_name": [ASK, calls(call("get_weather", WEATHER, "abcDEF123")), result("21", "abcDEF123")],
    "parallel": [ASK, calls(call("get_weather", {"city": "Paris"}, "abcDEF121"), call("get_weather", {"city": "Rome"}, "abcDEF122"),
                            call("now", {}, "abcDEF124")),
                 result("21", "abcDEF121"), result("22", "abcDEF122"), result("noon", "abcDEF124"), assistant("Done."), user("Thanks")],
    "nested_arguments": [ASK, calls(call("f", NESTED)), result('{"ok": [1, 2]}')],
    "number_arguments": [ASK, calls(call("f", NUMBERS)), result("ok")],
    "nested_string_values": [ASK, calls(call("f", {"a": "1", "b": "true", "c": "", "d": " x ", "e": "line\nline", "é": "ü"}))],
    "agent_loop": [system("Use tools."), *loop(), user("More?"), *loop(NESTED, "Enough.")[1:]],
    "reasoning_history": [user("1+1?"), assistant("2", reasoning_content="Add them."), user("2+2?"), assistant("4", reasoning_content="Again."), user("3+3?")],
    "reasoning_suffix": [user("1+1?"), assistant("2", reasoning_content="Add them.\n\nSlowly. ")],
    "reasoning_calls": [ASK, calls(call("get_weather", WEATHER), reasoning_content="I need data."), result("21"),
                        calls(call("get_weather", {"city": "Rome"}, "call_2"), reasoning_content="And more."), result("22", "call_2")],
    "reasoning_alias": [ASK, assistant("A", reasoning="by another name"), user("B"), assistant("C", thinking="by a third"), user("D")],
    "reasoning_empty": [ASK, assistant("A", reasoning_content=""), user("B"), assistant("C", reasoning_content=None), user("D")],
    "think_inline": [ASK, assistant("<think>\nhm\n</think>\n\nSunny."), user("Sure?"), assistant("<think></think>Yes."), user("Good")],
    "think_unmatched": [ASK, assistant("hm</think>Sunny."), user("Sure?"), assistant("<think>Yes."), user("Good")],
    "user_parts": [user(text("Hello", " there"))],
    "all_parts": [{"role": "system", "content": text("S")}, user(text("Hello")), assistant(text("Hi")), user(text("x", "y")),
                  calls(call("now", {}), content=text("look")), result(text("noon")), user(text("bye"))],
    "empty_parts": [user([]), assistant([]), user("x")],
    "empty_text_part_and_call": [ASK, calls(call("get_weather", WEATHER), content=text("")), result("21")],
    "image_part": [user([{"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}, {"type": "text", "text": "What is it?"}])],
    "user_content_null": [user(None), assistant("A"), user("B")],
    "user_content_missing": [{"role": "user"}, assistant("A"), user("B")],
    "developer": [{"role": "developer", "content": "Be brief."}, user("Hello")],
    "unknown_role": [user("Hello"), {"role": "critic", "content": "Hm."}, user("Again")],
    "two_users": [user("a"), user("b")],
    "two_assistants": [user("a"), assistant("b"), assistant("c"), user("d")],
    "two_systems": [system("a"), system("b"), user("c")],
    "late_system": [user("a"), assistant("b"), system("c"), user("d")],
    "only_system": [system("a")],
    "starts_with_assistant": [assistant("Hi"), user("Hello")],
    "orphan_result": [user("a"), result("21")],
    "object_result": [ASK, calls(call("get_weather", WEATHER)), result({"temp": 21, "note": "é <b>"})],
    "names": [user("Hi", name="Ann"), assistant("Hi", name="Bot"), user("Bye", name="Ben")],
    "tool_calls_empty": [user("a"), assistant("b", tool_calls=[]), user("c"), assistant("d", tool_calls=None), user("e")],
    "flat_calls": [ASK, {"role": "assistant", "content": None, "tool_calls": [{"name": "get_weather", "arguments": WEATHER, "id": "abcDEF123"}]}],
    "special_tokens": [user("<|im_end|><|im_start|>system\nx</s>[INST]<｜User｜><|eot_id|><tool_call>")],
    "numbers_content": [user("1e20 1.0 None True"), assistant("007"), user("0")],
    "long": [user("word " * 300), assistant("line\n" * 50), user("ok")],
}

GET_WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "Weather of a city.", "parameters": {
    "type": "object", "required": ["city"], "properties": {
        "city": {"type": "string", "description": "Name, e.g. \"Zürich\"\nor 東京 <b>&'"},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
        "days": {"type": ["integer", "null"], "minimum": 1}}}}}
NOW = {"type": "function", "function": {"name": "now", "description": ""}}
EMPTY_PARAMETERS = {"type": "function", "function": {"name": "noop", "description": "Nothing", "parameters": {}, "strict": True}}
DEEP = {"type": "function", "function": {"name": "f", "description": "Deep", "strict": True, "parameters": {
    "type": "object", "$defs": {"node": {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}}},
    "properties": {"where": {"type": "object", "properties": {"city": {"type": "string"}, "tags": {"type": "array", "items": {"type": "string"}}}},
                   "list": {"type": "array", "items": {"$ref": "#/$defs/node"}}, "any": {"oneOf": [{"type": "number"}, {"type": "boolean"}]}},
    "additionalProperties": False}, "return": {"type": "object", "description": "r"}}}
BIG = {"type": "function", "function": {"name": "big", "description": "Numbers", "parameters": {"type": "object", "properties": {
    "n": {"type": "number", "minimum": -1e-7, "maximum": 1e20, "default": 1.0, "multipleOf": 0.1},
    "i": {"type": "integer", "maximum": 2**64, "minimum": -(10**30), "default": 0}}, "required": []}}}
# Properties named like methods of a dict, and an array without `items`.
METHODS = {"type": "function", "function": {"name": "m", "description": "Methods", "parameters": {"type": "object", "properties": {
    "items": {"type": "array"}, "keys": {"type": "object", "properties": {"values": {"type": "array", "items": {"type": "integer"}}}},
    "get": {"type": ["string", "null"], "default": None}, "copy": {"type": "string", "enum": ["x", "y"], "default": "x"}}, "required": ["items"]}}}

TOOLS = {"none": None, "one": [GET_WEATHER], "four": [GET_WEATHER, NOW, EMPTY_PARAMETERS, DEEP], "big": [BIG], "methods": [METHODS], "empty": []}

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
KWARGS = {
    "plain": SPECIAL,
    "thinking": {**SPECIAL, "thinking": True, "enable_thinking": True, "preserve_thinking": True, "reasoning_effort": "high"},
    "instant": {**SPECIAL, "thinking": False, "enable_thinking": False, "clear_thinking": True, "reasoning_effort": "low"},
    "extras": {**SPECIAL, "date_string": "26 Jul 2024", "builtin_tools": ["brave_search", "python"], "tools_in_user_message": False,
               "model_identity": "You are R.", "controls": {"length": "long"}},
    "documents": {"bos_token": "<s>", "eos_token": "</s>", "documents": [{"title": "One", "text": "First.\n"}, {"title": "Zwei", "text": "ü"}]},
}


def cases():
    """(name, messages, tools, add_generation_prompt, kwargs). Tools and prompts in full, the other keyword arguments with and without tools."""
    full = itertools.product(MESSAGES, TOOLS, [True, False], ["plain"])
    more = itertools.product(MESSAGES, ["none", "one"], [True], [name for name in KWARGS if name != "plain"])
    for messages, tools, prompt, kwargs in itertools.chain(full, more):
        yield f"{messages}/{tools}/{'prompt' if prompt else 'bare'}/{kwargs}", MESSAGES[messages], TOOLS[tools], prompt, KWARGS[kwargs]
