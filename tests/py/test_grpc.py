"""A Python grpcio client: messages built from server reflection alone, as grpcurl does; health; deadlines."""
import json
import time

import grpc
import pytest
from google.protobuf import descriptor_pool, message_factory
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase


class Client:
    def __init__(self, address):
        self.channel = grpc.insecure_channel(address)
        self.database = ProtoReflectionDescriptorDatabase(self.channel)
        self.pool = descriptor_pool.DescriptorPool(self.database)

    def message(self, kind, /, **fields):
        return message_factory.GetMessageClass(self.pool.FindMessageTypeByName("rein.v1." + kind))(**fields)

    def call(self, method, request, timeout=60, metadata=()):
        info = self.pool.FindServiceByName("rein.v1.Inference").FindMethodByName(method)
        answer = message_factory.GetMessageClass(info.output_type)
        kind = self.channel.unary_stream if info.server_streaming else self.channel.unary_unary
        return kind(f"/rein.v1.Inference/{method}", request_serializer=lambda m: m.SerializeToString(),
                    response_deserializer=answer.FromString)(request, timeout=timeout, metadata=metadata)


@pytest.fixture(scope="module")
def client(demo):
    return Client(demo.grpc)


@pytest.fixture(scope="module")
def model(client):
    return client.call("ListModels", client.message("ListModelsRequest")).models[0].id


def chat(client, model, text, **fields):
    message = client.message("Message", role="user", content=text)
    limits = client.message("Limits", max_tokens=fields.pop("max_tokens", 120))
    sampling = client.message("Sampling", temperature=0)
    return client.message("ChatRequest", model=model, messages=[message], limits=limits, sampling=sampling, **fields)


def tool(client):
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    return client.message("Tool", name="get_weather", description="Get the current weather in a city", parameters_json=json.dumps(schema))


def test_health_and_reflection(demo, client):
    status = health_pb2_grpc.HealthStub(client.channel).Check(health_pb2.HealthCheckRequest(service="rein.v1.Inference"))
    assert status.status == health_pb2.HealthCheckResponse.SERVING
    assert "rein.v1.Inference" in client.database.get_services()


def test_chat_streams_typed_events(client, model):
    events = list(client.call("Chat", chat(client, model, "What is the weather in Paris?", tools=[tool(client)])))
    kinds = [event.WhichOneof("event") for event in events]
    assert kinds[0] == "start" and kinds.count("done") == 1 and kinds[-1] == "usage"
    starts = [event.tool_call_start for event in events if event.WhichOneof("event") == "tool_call_start"]
    assert [call.name for call in starts] == ["get_weather"]
    arguments = "".join(event.arguments_delta.text for event in events if event.WhichOneof("event") == "arguments_delta")
    assert json.loads(arguments)["city"] == "Paris"
    ends = [event.tool_call_end for event in events if event.WhichOneof("event") == "tool_call_end"]
    assert [end.complete for end in ends] == [True]


def test_render_tokenize_and_complete(client, model):
    rendered = client.call("Render", chat(client, model, "hello"))
    tokenized = client.call("Tokenize", client.message("TokenizeRequest", model=model, text=rendered.prompt))
    assert list(tokenized.ids) == list(rendered.token_ids)
    text = client.call("Detokenize", client.message("DetokenizeRequest", model=model, ids=tokenized.ids)).text
    assert text.decode() == rendered.prompt
    limits = client.message("Limits", max_tokens=4)
    request = client.message("CompleteRequest", model=model, text="The", limits=limits, return_token_ids=True)
    events = list(client.call("Complete", request))
    assert sum(len(event.token_ids) for event in events) == 4 or any(e.done.finish_reason == 1 for e in events)


@pytest.mark.parametrize("change, words", [
    ({"messages": []}, "messages"),
    ({"model": "another"}, "another"),
])
def test_errors_have_codes_and_messages(client, model, change, words):
    request = chat(client, model, "hello")
    for name, value in change.items():
        request.ClearField(name)
        if not isinstance(value, list):
            setattr(request, name, value)
    with pytest.raises(grpc.RpcError) as caught:
        list(client.call("Chat", request))
    assert caught.value.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND)
    assert words in caught.value.details()


@pytest.mark.parametrize("sent", [b"\x0a\x01\xff", b"\x0a\x7fshort", b"\xff\xff"], ids=["not UTF-8", "cut off", "no field"])
def test_invalid_messages_are_client_errors(client, model, sent):
    for method, kind in (("Chat", client.channel.unary_stream), ("Complete", client.channel.unary_stream), ("Tokenize", client.channel.unary_unary)):
        call = kind(f"/rein.v1.Inference/{method}", request_serializer=lambda raw: raw, response_deserializer=lambda raw: raw)
        with pytest.raises(grpc.RpcError) as caught:
            answer = call(sent, timeout=60)
            list(answer)
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT, method
        assert "failed to decode" in caught.value.details()
    assert list(client.call("Chat", chat(client, model, "hello", max_tokens=2)))


def test_a_deadline_ends_the_call_and_frees_the_slot(sim):
    client = Client(sim.grpc)
    model = client.call("ListModels", client.message("ListModelsRequest")).models[0].id
    request = chat(client, model, "hello", max_tokens=3000)
    request.limits.ignore_eos = True
    with pytest.raises(grpc.RpcError) as caught:
        list(client.call("Chat", request, timeout=0.5))
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    started = time.monotonic()
    assert list(client.call("Chat", chat(client, model, "hello", max_tokens=2)))
    assert time.monotonic() - started < 3
