// SPDX-License-Identifier: Apache-2.0

//go:build !linux || !amd64

package advice

func explainAttach(err error, _ int) error { return err }
