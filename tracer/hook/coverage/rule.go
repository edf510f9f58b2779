// SPDX-License-Identifier: Apache-2.0

package main

import "regexp"

// memoryName and memoryType are wide on purpose: the table must list each match by name, so that no function that could
// be about memory is covered by a family's prefix.
var (
	memoryName = regexp.MustCompile(`Mem|mem|Alloc|alloc|Free|Array|Mipmap|Pool|I[Pp][Cc]|External|Import|Export|Share` +
		`|Multicast|Endpoint|Ctx|Context|Reset|Module|Library|Link|Host(Reg|Unreg)|Image|Surf|Tensor|Buffer|Virtual|Physical` +
		`|Map|Limit|Heap|Checkpoint|Resident|Evict|Graph(Exec)?(Add(Child)?(Graph)?Node|Instantiate|Launch|Upload|Update|Clone|Destroy)` +
		`|Subgrid|Release|Discard|Compress|compress|Exit|Init|FuncLoad`)
	memoryType = regexp.MustCompile(`[dD]eviceptr|\bvoid\*\*|[mM]em(ory)?Pool|[aA]rray|externalMemory|ExternalMemory` +
		`|AllocationHandle|CUcontext\*|hipCtx_t\*|[gG]reenCtx\*|ExecutionContext_t\*|CUmodule\*|hipModule_t\*|[lL]ibrary(_t)?\*` +
		`|GraphExec(_t)?\*|graphExec\*|graphNodeParams|GraphNodeParams|physical_mem|image_handle_t\*|context_handle_t\*|module_handle_t\*`)
)

// MayBeMemory reports whether a function may have to do with memory, by its name or its parameters.
func MayBeMemory(d Declaration) bool {
	if memoryName.MatchString(d.Name) {
		return true
	}
	for _, p := range d.Params {
		if memoryType.MatchString(p) {
			return true
		}
	}
	return false
}
