"""llama.cpp on the stand-in device: loads a model of zeros, makes a context and decodes four tokens.

    llama_cpp.py FOLDER LIBRARY     LIBRARY: a build of llama.cpp for CUDA that exports llama.h

It waits for the file "go" in the folder and, when it is done, for "hold". llama.cpp prints the sizes of its buffers to stderr.
"""

import ctypes
import os
import struct
import sys
import time

WIDTH, INNER, LAYERS, HEADS, TOKENS = 512, 1024, 8, 8, 288
UINT32, INT32, FLOAT32, STRING, ARRAY = 4, 5, 6, 8, 9  # of GGUF
ALIGNMENT = 32


def text(value):
    value = value.encode()
    return struct.pack("<Q", len(value)) + value


def entry(key, kind, value):
    return text(key) + struct.pack("<I", kind) + value


def array(kind, values):
    return struct.pack("<IQ", kind, len(values)) + b"".join(values)


def header():
    """GGUF's keys and values: what llama.cpp needs of a model and of its tokens, which are bytes."""
    names = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
    names += [f"t{i}" for i in range(TOKENS - len(names))]
    kinds = [2, 3, 3, *[6] * 256, *[1] * (TOKENS - 259)]
    numbers = {
        "context_length": 4096, "embedding_length": WIDTH, "block_count": LAYERS, "feed_forward_length": INNER, "attention.head_count": HEADS,
        "attention.head_count_kv": HEADS, "vocab_size": TOKENS, "rope.dimension_count": WIDTH // HEADS,
    }
    return [
        entry("general.architecture", STRING, text("llama")),
        *(entry("llama." + key, UINT32, struct.pack("<I", value)) for key, value in numbers.items()),
        entry("llama.attention.layer_norm_rms_epsilon", FLOAT32, struct.pack("<f", 1e-5)),
        entry("tokenizer.ggml.model", STRING, text("llama")),
        entry("tokenizer.ggml.tokens", ARRAY, array(STRING, [text(name) for name in names])),
        entry("tokenizer.ggml.scores", ARRAY, array(FLOAT32, [struct.pack("<f", 0)] * TOKENS)),
        entry("tokenizer.ggml.token_type", ARRAY, array(INT32, [struct.pack("<i", kind) for kind in kinds])),
    ]


def tensors():
    yield from (("token_embd.weight", [WIDTH, TOKENS]), ("output_norm.weight", [WIDTH]), ("output.weight", [WIDTH, TOKENS]))
    for i in range(LAYERS):
        yield from ((f"blk.{i}.{name}.weight", [WIDTH]) for name in ("attn_norm", "ffn_norm"))
        yield from ((f"blk.{i}.attn_{name}.weight", [WIDTH, WIDTH]) for name in ("q", "k", "v", "output"))
        yield from ((f"blk.{i}.ffn_{name}.weight", [WIDTH, INNER]) for name in ("gate", "up"))
        yield f"blk.{i}.ffn_down.weight", [INNER, WIDTH]


def write_model(path):
    infos, offset = [], 0
    for name, shape in tensors():
        infos.append(text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, offset))
        size = 4
        for n in shape:
            size *= n
        offset += -(-size // ALIGNMENT) * ALIGNMENT
    entries = header()
    begin = b"GGUF" + struct.pack("<IQQ", 3, len(infos), len(entries)) + b"".join(entries) + b"".join(infos)
    with open(path, "wb") as f:
        f.write(begin)
        f.truncate(-(-len(begin) // ALIGNMENT) * ALIGNMENT + offset)  # zeros


class Parameters(ctypes.Structure):
    """llama_model_params or llama_context_params, which are passed on the stack: room for either."""

    _fields_ = [("words", ctypes.c_uint64 * 40)]


class Batch(ctypes.Structure):
    _fields_ = [("tokens", ctypes.c_int32), ("arrays", ctypes.c_void_p * 6)]


def load(path):
    lib = ctypes.CDLL(path, mode=os.RTLD_LAZY)  # its functions for Node.js are not called
    lib.llama_model_default_params.restype = lib.llama_context_default_params.restype = Parameters
    lib.llama_model_load_from_file.restype = lib.llama_init_from_model.restype = ctypes.c_void_p
    lib.llama_model_load_from_file.argtypes = [ctypes.c_char_p, Parameters]
    lib.llama_init_from_model.argtypes = [ctypes.c_void_p, Parameters]
    lib.llama_batch_get_one.restype, lib.llama_batch_get_one.argtypes = Batch, [ctypes.c_void_p, ctypes.c_int32]
    lib.llama_decode.argtypes = [ctypes.c_void_p, Batch]
    return lib


def wait(name):
    while not os.path.exists(os.path.join(folder, name)):
        time.sleep(0.01)


folder, library = sys.argv[1:3]
model_file = os.path.join(folder, "zeros.gguf")
write_model(model_file)
llama = load(library)
ctypes.CDLL("libcudart.so.12").cudaFree(None)
print("READY", os.getpid(), flush=True)
wait("go")
llama.llama_backend_init()
model = llama.llama_model_load_from_file(model_file.encode(), llama.llama_model_default_params())
context = llama.llama_init_from_model(model, llama.llama_context_default_params())
prompt = (ctypes.c_int32 * 4)(1, 5, 6, 7)
print("DONE" if llama.llama_decode(context, llama.llama_batch_get_one(prompt, len(prompt))) == 0 else "FAILED", flush=True)
wait("hold")
os._exit(0)  # without Node.js, its destructors have nothing to destroy
