// SPDX-License-Identifier: Apache-2.0

//go:build !linux || !amd64

package main

// explainAttach has nothing to add where nothing is attached to.
func explainAttach(err error, _ int) error { return err }
