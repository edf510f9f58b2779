// SPDX-License-Identifier: Apache-2.0

package notice

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/gputrace/gputrace/recorder"
)

// Python describes the interpreter that an attach found.
func Python(f *recorder.Found) string {
	switch {
	case f.Python != "" && f.Beside != "":
		return fmt.Sprintf("Python %s (lines of %s in the same process are not known)", f.Python, f.Beside)
	case f.Python != "":
		return "Python " + f.Python
	}
	if f.NoPython {
		return "no Python"
	}
	return fmt.Sprintf("Python: native frames only (%v)", f.PythonErr)
}

// Torch describes the PyTorch that an attach found.
func Torch(f *recorder.Found) string {
	switch {
	case f.PyTorch == "" && len(f.Frameworks) > 0:
		return strings.Join(f.Frameworks, " · ")
	case f.PyTorch == "" && len(f.Hooks) > 0 && !f.HooksTorch():
		return "no PyTorch"
	case f.PyTorch == "":
		return "PyTorch unknown"
	case f.CUDA == "":
		return "PyTorch " + f.PyTorch
	default:
		return fmt.Sprintf("PyTorch %s (CUDA %s)", f.PyTorch, f.CUDA)
	}
}

// Driver returns the driver's version from the name of its library, or otherwise the one that the driver reports.
func Driver(f *recorder.Found, driver string) string {
	return "driver " + cmp.Or(f.Driver, driver, "unknown")
}
