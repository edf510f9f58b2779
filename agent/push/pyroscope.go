// SPDX-License-Identifier: Apache-2.0

package push

import (
	"maps"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
)

// PyroscopePath is the path of Pyroscope's push API, below the address of the server.
const PyroscopePath = "push.v1.PusherService/Push"

// Pyroscope returns a profile in pprof's format as a request to Pyroscope's push API: one series with the labels of the process, its
// service_name and the name of the profile.
//
// The messages of push/v1/push.proto: PushRequest{series 1}, RawProfileSeries{labels 1, samples 2}, LabelPair{name 1, value 2},
// RawSample{raw_profile 1}.
func Pyroscope(name string, pprof []byte, labels map[string]string, program string) []byte {
	all := map[string]string{}
	maps.Copy(all, labels)
	all["__name__"], all["service_name"] = name, serviceName(labels, program)
	var series []byte
	for _, label := range slices.Sorted(maps.Keys(all)) {
		series = appendField(series, 1, appendField(appendField(nil, 1, []byte(label)), 2, []byte(all[label])))
	}
	series = appendField(series, 2, appendField(nil, 1, pprof))
	return appendField(nil, 1, series)
}

// appendField appends a field of bytes to a message.
func appendField(message []byte, number protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(message, number, protowire.BytesType), value)
}
