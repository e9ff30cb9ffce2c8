package observer

import (
	"reflect"

	"ration/internal/abi"
)

// Offset returns where a field is in a region's file, given by names and by indices of
// arrays.
func Offset(path ...any) int64 {
	t, offset := reflect.TypeFor[abi.Region](), int64(0)
	for _, step := range path {
		switch s := step.(type) {
		case string:
			f, ok := t.FieldByName(s)
			if !ok {
				panic(s)
			}
			t, offset = f.Type, offset+int64(f.Offset)
		case int:
			t = t.Elem()
			offset += int64(s) * int64(t.Size())
		}
	}
	return offset
}
