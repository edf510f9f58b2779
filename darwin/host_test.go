// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package darwin

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// said answers as programs of macOS do, by their documentation; the key is the command. What is not there fails.
func said(answers map[string]string) asker {
	return func(name string, args ...string) (string, error) {
		text, ok := answers[strings.Join(append([]string{name}, args...), " ")]
		if !ok {
			return "", errors.New("exit status 1")
		}
		return text, nil
	}
}

const (
	ioreg     = "ioreg -r -d 1 -w 0 -c IOAccelerator"
	customSIP = "System Integrity Protection status: unknown (Custom Configuration).\n\nConfiguration:\n\tApple Internal: " +
		"disabled\n\tKext Signing: enabled\n\tFilesystem Protections: enabled\n\tDebugging Restrictions: enabled\n\tDTrace Restrictions: "
	appleGPU = "+-o AGXAcceleratorG13X  <class AGXAcceleratorG13X, id 0x100000411, registered, matched, active, busy 0 (2 ms), retain " +
		"67>\n  | {\n  |   \"model\" = \"Apple M1 Pro\"\n  |   \"gpu-core-count\" = 16\n  | }\n"
	intelGPU = "+-o AMDRadeonX6000_AMDNavi14GraphicsAccelerator  <class AMDRadeonX6000, id 0x1000004ff>\n    {\n      \"model\" = <\"AMD " +
		"Radeon Pro 5300M\">\n    }\n"
	virtualGPU = "+-o AppleParavirtGPU  <class AppleParavirtAccelerator, id 0x100000301>\n    {\n    }\n"
)

// TestHostChecks: each input has one line, whether it is well, and what to do when it is not.
func TestHostChecks(t *testing.T) {
	for _, tt := range []struct {
		check         func(asker) check
		command, text string
		works         bool
		why, cure     string
	}{
		{checkVersion, "sw_vers -productVersion", "15.5\n", true, "15.5", ""},
		{checkVersion, "sw_vers -productVersion", "12.3.1\n", true, "12.3", ""},
		{checkVersion, "sw_vers -productVersion", "12.2\n", false, "12.2, and PyTorch's MPS needs 12.3", "update macOS"},
		{checkVersion, "sw_vers -productVersion", "11.7\n", false, "needs 12.3", "update macOS"},
		{checkVersion, "sw_vers -productVersion", "garbage", false, "is not known", ""},
		{checkVersion, "", "", false, "is not known", ""},
		{checkGPU, ioreg, appleGPU, true, "Apple M1 Pro", ""},
		{checkGPU, ioreg, intelGPU, true, "AMD Radeon Pro 5300M", ""},
		{checkGPU, ioreg, virtualGPU, true, "its model is not known", ""},
		{checkGPU, ioreg, "", false, "there is none that Metal can use", "not in a virtual machine"},
		{checkGPU, "", "", false, "ioreg failed", ""},
		{checkTranslated, "sysctl -n sysctl.proc_translated", "1\n", false, "is translated", "install gputrace for arm64"},
		{checkTranslated, "sysctl -n sysctl.proc_translated", "0\n", true, "not translated", ""},
		{checkTranslated, "", "", true, "not translated", ""}, // Macs with Intel's processors have no such name
		{checkSIP, "csrutil status", "System Integrity Protection status: enabled.\n", true, "on, which", ""},
		{checkSIP, "csrutil status", "System Integrity Protection status: disabled.\n", true, "off", ""},
		{checkSIP, "csrutil status", customSIP + "disabled\n", true, "on but for dtrace", ""},
		{checkSIP, "csrutil status", customSIP + "enabled\n", true, "dtrace is restricted", ""},
		{checkSIP, "csrutil status", "System Integrity Protection status: purple\n", true, `"purple"`, ""},
		{checkSIP, "", "", true, "csrutil says nothing", ""},
	} {
		c := tt.check(said(map[string]string{tt.command: tt.text}))
		require.Equal(t, tt.works, c.works, "%q: %+v", tt.text, c)
		require.Contains(t, c.why, tt.why)
		require.Contains(t, c.cure, tt.cure)
		require.Equal(t, tt.cure == "", c.cure == "", "%+v", c)
		require.NotContains(t, c.why+c.cure, "\n")
	}
}

func TestPythonKind(t *testing.T) {
	for path, want := range map[string]string{
		"/opt/homebrew/bin/python3": "of Homebrew",
		"/opt/homebrew/Cellar/python@3.13/3.13.1/Frameworks/Python.framework/Versions/3.13/bin/python3.13":    "of Homebrew",
		"/usr/local/Cellar/python@3.11/3.11.4/Frameworks/Python.framework/Versions/3.11/bin/python3.11":       "of Homebrew",
		"/Library/Frameworks/Python.framework/Versions/3.12/bin/python3":                                      "of python.org",
		"/Library/Developer/CommandLineTools/Library/Frameworks/Python3.framework/Versions/3.9/bin/python3.9": "of Apple's developer tools",
		"/Applications/Xcode.app/Contents/Developer/usr/bin/python3":                                          "of Apple's developer tools",
		"/usr/bin/python3": "of macOS",
		"/Users/a/.pyenv/versions/3.13.0/bin/python3.13":                                   "of pyenv",
		"/Users/a/.local/share/uv/python/cpython-3.14.0-macos-aarch64-none/bin/python3.14": "of uv",
		"/Users/a/miniconda3/envs/x/bin/python3.11":                                        "of conda",
		"/opt/miniforge3/bin/python3":                                                      "of conda",
		"/Users/a/build/python3":                                                           "",
	} {
		require.Equal(t, want, pythonKind(path, path), path)
	}
	require.Equal(t, "of uv", pythonKind("/Users/a/project/.venv/bin/python", "/Users/a/.local/share/uv/python/cpython-3.14/bin/python3.14"))
	c, ok := checkPython("/usr/bin/python3")
	require.True(t, ok)
	require.False(t, c.works && strings.Contains(c.why, "of macOS"))
	_, ok = checkPython("/usr/bin/ruby")
	require.False(t, ok)
}

// TestExamineHost: what doctor prints has each check in a line, and its cure below.
func TestExamineHost(t *testing.T) {
	var b strings.Builder
	e := examine("no-such-program", said(map[string]string{
		"sw_vers -productVersion": "12.0\n", ioreg: appleGPU, "csrutil status": "System Integrity Protection status: enabled.\n",
	}))
	require.NoError(t, e.Write(&b))
	for _, line := range []string{
		"  macOS     no: 12.0, and PyTorch's MPS needs 12.3\n            update macOS\n", "  GPU       ok: Apple M1 Pro\n",
		"  Rosetta   ok: gputrace is not translated\n", "  SIP       ok: on,",
		"  dtrace    no: there is none in PATH\n            use gputrace run",
		"  program   not found",
	} {
		require.Contains(t, b.String(), line)
	}
}
