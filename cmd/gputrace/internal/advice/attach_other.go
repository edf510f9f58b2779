// SPDX-License-Identifier: Apache-2.0

//go:build !linux || (!amd64 && !arm64)

package advice

func explainAttach(err error, _ int) error { return err }

// Machine has nothing to say where nothing is traced.
func Machine() (sudo bool, lines []string) { return false, nil }
