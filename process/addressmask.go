// SPDX-License-Identifier: Apache-2.0

//go:build linux

package process

import (
	"math/bits"
	"os"
	"sync"
)

// usualBits is how many bits an address of a process has where that is not known.
const usualBits = 48

// AddressMask has the bits that an address of this machine's processes can have. Above them lies the signature of a return address
// (pointer authentication of arm64), whose width depends on how the kernel was built. The stack begins next to the highest address,
// so its mapping tells.
var AddressMask = sync.OnceValue(func() uint64 {
	p, err := Open(os.Getpid())
	if err != nil {
		return 1<<usualBits - 1
	}
	maps, err := p.Maps()
	if err != nil {
		return 1<<usualBits - 1
	}
	for i := range maps {
		if maps[i].Path == "[stack]" {
			return 1<<bits.Len64(maps[i].End-1) - 1
		}
	}
	return 1<<usualBits - 1
})
