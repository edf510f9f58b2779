// SPDX-License-Identifier: Apache-2.0

package event

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestNumbers holds what recordings contain: a number, once given, keeps its name.
func TestNumbers(t *testing.T) {
	for value, want := range map[interface{ String() string }]string{
		Kind(1): "alloc", Kind(2): "free", Kind(3): "free_failed", Kind(4): "oom",
		Layer(1): "torch", Layer(2): "device", Layer(3): "host",
		DeviceType(0): "cpu", DeviceType(1): "cuda", DeviceType(6): "hip", DeviceType(12): "xpu",
		StackStatus(0): "complete", StackStatus(1): "no mapping", StackStatus(2): "no unwind row", StackStatus(3): "unsupported rule",
		StackStatus(4): "unreadable", StackStatus(5): "frames out of order", StackStatus(6): "too deep",
		AnnotationKind(1): "watch", AnnotationKind(2): "unwatch", AnnotationKind(3): "observed", AnnotationKind(4): "baseline",
		AnnotationKind(5): "from_start",
		AnnotationKind(6): "checkpoint", AnnotationKind(7): "lost", StackStatus(7): "no Python state", StackStatus(8): "no scratch",
		StackStatus(9):  "lost",
		StackStatus(13): "over the limit", StackStatus(14): "CPU budget",
	} {
		require.Equal(t, want, value.String())
	}
}

func TestUnknownNumbers(t *testing.T) {
	for value, want := range map[interface{ String() string }]string{
		Kind(0): "kind(0)", Kind(255): "kind(255)", Layer(0): "layer(0)", DeviceType(2): "device(2)", StackStatus(255): "status(255)",
	} {
		require.Equal(t, want, value.String())
	}
}

func TestDeviceString(t *testing.T) {
	for want, d := range map[string]Device{
		"cuda:0": {DeviceCUDA, 0}, "cuda:127": {DeviceCUDA, 127}, "cuda:?": {DeviceCUDA, -1}, "hip:3": {DeviceHIP, 3},
		"device(20):1": {20, 1}, "cpu:?": {DeviceCPU, -128},
	} {
		require.Equal(t, want, d.String())
	}
}

func TestFrameLabel(t *testing.T) {
	lib := &Module{Path: "/usr/lib/libc.so.6"}
	for name, c := range map[string]struct {
		frame Frame
		want  string
	}{
		"Python":         {Frame{Kind: FramePython, Func: "Net.forward", File: "a.py", Line: 3}, "Net.forward"},
		"native":         {Frame{Kind: FrameNative, Func: "malloc", Module: lib, Addr: 0x7f00, Offset: 0x10}, "malloc"},
		"no symbol":      {Frame{Kind: FrameNative, Module: lib, Addr: 0x7f00, Offset: 0x1234}, "libc.so.6+0x1234"},
		"no module":      {Frame{Kind: FrameNative, Addr: 0x7f00}, "0x7f00"},
		"nothing at all": {Frame{}, "0x0"},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, c.want, c.frame.Label()) })
	}
}

func TestModuleName(t *testing.T) {
	for path, want := range map[string]string{"/a/b/c.so": "c.so", "[vdso]": "[vdso]", "": "", "/": "", "a/": "",
		"/x y/lib c.so": "lib c.so"} {
		require.Equal(t, want, (&Module{Path: path}).Name(), "%q", path)
	}
}
