"""One architecture, one file, named as ``general.architecture`` names it in a GGUF file, hyphens as underscores.

To add an architecture, add ``models/<name>.py`` with a class ``Model``:

    class Model:
        wide: ClassVar[bool]            activations may leave the range of float16 (65,504)
        kv_shapes: list[KVShape]        what each layer remembers of a token; a StateShape, of a sequence
        blocks: list[Block]             the layers, called one after the other; a draft may stop early

        def __init__(self, config: Config, tensors: Tensors) -> None:
            ...                         reads its settings, asks for its tensors by the names of the file

        def __call__(self, batch: Batch) -> mx.array:
            ...                         logits of the wanted rows: (R, V) float32

and a row in ``tests/architectures.py``, by which llama.cpp is its judge. Attributes carry the names of the file's
tensors, so there is no table of names. Whatever the constructor does not ask for, be it a setting or a tensor, is
refused by the loader: a model that runs has been read whole. Anything odd about an architecture is a line in its file,
never in the loader.
"""
