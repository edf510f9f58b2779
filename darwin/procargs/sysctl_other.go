// SPDX-License-Identifier: Apache-2.0

//go:build !darwin

package procargs

import "errors"

// Of is for macOS only.
func Of(int) (*Args, error) {
	return nil, errors.New("arguments of a process: read so on macOS only")
}
