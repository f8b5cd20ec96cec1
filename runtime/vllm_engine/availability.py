"""Whether the stubs of VllmEngine are there and usable."""

from __future__ import annotations

from runtime.settings import BadConfig

_EXTRA = "pip install 'radixloop[router]'"


def served(wanted: str) -> bool:
    """Whether to serve VllmEngine under the setting auto, on or off. Raises BadConfig for on without usable stubs."""
    if wanted == "off":
        return False
    try:
        # They check at import that grpcio and protobuf are as new as they need.
        import smg_grpc_proto.generated.vllm_engine_pb2_grpc  # noqa: F401
    except Exception as error:
        if wanted == "auto":
            return False
        raise BadConfig("vllm_engine", f"on needs the stubs ({error}): {_EXTRA}") from None
    return True
