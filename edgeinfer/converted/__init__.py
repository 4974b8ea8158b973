"""Folders of converted weights (``config.json`` and safetensors), seen as the GGUF file that they would become.

``checkpoint`` puts it together: ``folder`` finds the stored tensors, ``settings`` translates ``config.json``,
``vocabulary`` the tokenizer, ``families`` the names, ``schemes`` the quantized weights. So models, tokenizer, commands
and the conversion to GGUF have one kind of model to know.
"""
