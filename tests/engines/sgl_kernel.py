"""In place of SGLang's package of compiled kernels, which has none for processors without AMX on PyPI. With the attention, sampling
and layers of torch, SGLang imports the names but calls none of them."""


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_, **__):
        raise NotImplementedError(f"sgl_kernel.{name} is not there")

    return missing
