// SPDX-License-Identifier: Apache-2.0

package phases

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/eventtest"
)

const (
	vllm   = "a.so!at::_ops::zeros::call /s/vllm/v1/worker/"
	runner = "/s/vllm/v1/worker/gpu_model_runner.py:1:GPUModelRunner."
	sglang = "a.so!at::_ops::zeros::call /s/sglang/srt/"
	llama  = "libcuda.so.1!cuMemAlloc_v2 libcudart.so.12!cudaMalloc libllama.so!"
	begun  = " libllama.so!llama_init_from_model"
)

// TestServers: the categories of servers of language models, by the functions that allocate.
func TestServers(t *testing.T) {
	c := New(nil, nil, nil)
	for _, row := range []struct {
		want  Category
		stack string
	}{
		{KVCache, vllm + "utils.py:564:allocate_kv_cache " + runner + "initialize_kv_cache_tensors" + main},
		{KVCache, vllm + "gpu_model_runner.py:1:GPUModelRunner._allocate_kv_cache_tensors" + main},
		{Graphs, vllm + "gpu_model_runner.py:5447:GPUModelRunner._dummy_run " + runner + "capture_model" + main},
		{NoCategory, vllm + "gpu_model_runner.py:5447:GPUModelRunner._dummy_run " + runner + "profile_run" + main},
		{KVCache, sglang + "mem_cache/memory_pool.py:2434:MHATokenToKVPool._create_buffers" + main},
		{Graphs, sglang + "model_executor/runner/decode_cuda_graph_runner.py:1368:DecodeCudaGraphRunner.capture_one_shape" + main},
		{KVCache, llama + "llama_kv_cache::llama_kv_cache libllama.so!llama_context::llama_context" + begun},
		{Parameters, llama + "llama_model_base::load_tensors libllama.so!llama_model_load_from_file"},
		{Activations, llama + "ggml_backend_sched_reserve libllama.so!llama_context::sched_reserve" + begun},
		{Workspace, llama + "ggml_cuda_pool_vmm::alloc libllama.so!llama_decode"},
	} {
		require.Equal(t, row.want, c.Stack(eventtest.Stack(row.stack)).Category, row.stack)
	}
}

// TestWithoutPhases: a program without PyTorch has no phases, and its memory has the category of its stack at once. A cache of keys and
// values is one also in the phase in which it is freed.
func TestWithoutPhases(t *testing.T) {
	const model, cache, other = 1, 2, 3
	frames := map[event.StackID]*event.Stack{
		model: eventtest.Stack(llama + "llama_model_base::load_tensors"), other: eventtest.Stack(llama + "f"),
		cache: eventtest.Stack("a.so!at::_ops::cat::call /s/transformers/cache_utils.py:100:DynamicLayer.update" + main),
	}
	l := New(nil, nil, func(id event.StackID) *event.Stack { return frames[id] }).Follow()
	start := func(layer event.Layer, stack event.StackID) *Start {
		l.See(&event.Event{Kind: event.KindAlloc, Layer: layer, PID: 7, TID: 7, Stack: stack})
		s := l.Start(&heap.Block{PID: 7, Layer: layer, Stack: stack, Size: 512}, 7, true)
		return &s
	}
	require.Equal(t, Parameters, l.InUse(start(event.LayerDevice, model)))
	require.Equal(t, NoCategory, l.InUse(start(event.LayerDevice, other)))
	kept := start(event.LayerAllocator, cache)
	require.Equal(t, KVCache, l.InUse(kept))
	require.Equal(t, KVCache, l.Freed(kept, 7))
}
