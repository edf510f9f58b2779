// SPDX-License-Identifier: Apache-2.0

// Package e2e tests gputrace as a user runs it: against PyTorch on the stand-in device and against programs whose stacks and
// memory are known. Every figure is compared with one that was made without gputrace: PyTorch's recorder and counters, the
// stand-in driver's ledger, the interpreter's own view of its stacks, the kernel's run counters, pprof. It needs root, gcc
// and CPython 3.8 to 3.15 (testdata/debian-python.sh fetches the last two); what is missing fails the tests.
package e2e
