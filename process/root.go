// SPDX-License-Identifier: Apache-2.0

package process

import "os"

// OpenPath opens a regular file by the path that the process would use; see Root.Open.
func (p *Process) OpenPath(path string) (*os.File, error) {
	r, err := p.Root()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return r.Open(path)
}

// Exists reports whether a path exists in the process's own root directory. It does not follow a link at the path's end.
func (p *Process) Exists(path string) bool {
	r, err := p.Root()
	if err != nil {
		return false
	}
	defer r.Close()
	return r.exists(path)
}
