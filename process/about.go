// SPDX-License-Identifier: Apache-2.0

package process

// About is a process's description of itself. Fields that could not be read are empty.
type About struct {
	Name    string   // as Process.Name
	Cmdline []string // the first aboutArguments arguments
	Exe     string   // as Process.Exe, empty when it cannot be read
	Cwd     string
	Environ []string // as Process.Environ, nil when it cannot be read
}

// aboutArguments is the number of arguments that are kept of a command line.
const aboutArguments = 32

// About reads the description of a running process.
func (p *Process) About() *About {
	a := &About{Name: p.Name(), Cmdline: p.Cmdline(aboutArguments), Cwd: p.Cwd()}
	a.Exe, _ = p.Exe()
	a.Environ, _ = p.Environ()
	return a
}
