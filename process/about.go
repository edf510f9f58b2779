// SPDX-License-Identifier: Apache-2.0

package process

// About is what a process says of itself. In the zero value nothing is known.
type About struct {
	Name    string   // as of Process.Name
	Cmdline []string // the first arguments, at most aboutArguments
	Exe     string   // as of Process.Exe, empty when it cannot be read
	Cwd     string
	Environ []string // as of Process.Environ, nil when it cannot be read
}

// aboutArguments is how many arguments are kept of a command line.
const aboutArguments = 32

// About reads what can be read of a process, while it is there to be asked.
func (p *Process) About() *About {
	a := &About{Name: p.Name(), Cmdline: p.Cmdline(aboutArguments), Cwd: p.Cwd()}
	a.Exe, _ = p.Exe()
	a.Environ, _ = p.Environ()
	return a
}
