// SPDX-License-Identifier: Apache-2.0

// Package bpf holds the kernel side: the C sources, the compiled object, and the Go types that mirror records.h and tables.h. Nothing is
// written by hand twice: `make generate` rebuilds everything from the C sources and CI compares.
package bpf

//go:generate go tool bpf2go -cc clang-19 -target amd64,arm64 -strip llvm-strip-19 -go-package bpf -type record_event -type record_free -type record_stack -type record_code -type record_code_changed -type record_process -type process_change -type traced_state -type record_raw_page -type raw_word -type code_chunk -type record_type -type event_kind -type event_layer -type event_object -type record_call -type operand_name -type operand_from -type hook_flag -type hook_program -type stack_status -type outcome -type py_entry Trace gputrace.bpf.c -- -O2 -g -mcpu=v3 -Wall -Wextra -Wno-unused-function -Werror
//go:generate go tool bpf2go -cc clang-19 -target amd64,arm64 -strip llvm-strip-19 -go-package bpf Prove prove.bpf.c -- -O2 -g -mcpu=v3 -Wall -Wextra -Wno-unused-function -Werror
