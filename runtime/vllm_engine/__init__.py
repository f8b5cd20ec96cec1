"""The runtime as routers know engines: vllm.grpc.engine.VllmEngine, with the stubs of the package smg-grpc-proto."""
