package abi

import (
	"reflect"
	"structs"
	"testing"
)

const cacheLine = 64

// Words that different processes write must not share a cache line, or writers
// slow each other for nothing.
func TestHotWordsHaveTheirOwnLines(t *testing.T) {
	account := reflect.TypeFor[Account]()
	header := reflect.TypeFor[Header]()
	device := reflect.TypeFor[Device]()
	for _, c := range []struct {
		t    reflect.Type
		a, b string
	}{
		{account, "Used", "Done"}, // owner, everybody
		{account, "Phase", "Done"},
		{device, "LedgerWord", "Peak"}, // every charge, some
		{device, "LedgerWord", "ContextCost"},
		{header, "State", "Ticket"},
		{header, "Ticket", "RefusalNext"},
		{header, "RefusalNext", "Counters"},
		{header, "Counters", "HostPIDLock"},
	} {
		if line(c.t, c.a) == line(c.t, c.b) {
			t.Errorf("%s.%s and %s share a cache line", c.t.Name(), c.a, c.b)
		}
	}
	// What a reader of the figures needs is on one line while the account is idle.
	if line(account, "Phase") != line(account, "A") {
		t.Error("Account.Phase and A are on two cache lines")
	}
}

func line(t reflect.Type, field string) uintptr {
	f, ok := t.FieldByName(field)
	if !ok {
		panic(field)
	}
	return f.Offset / cacheLine
}

func TestAlignment(t *testing.T) {
	region := reflect.TypeFor[Region]()
	for i := range region.NumField() {
		if f := region.Field(i); f.Offset%PageSize != 0 && f.Name != "Compute" {
			t.Errorf("Region.%s begins at %d, not on a page", f.Name, f.Offset)
		}
	}
	if region.Size()%PageSize != 0 {
		t.Errorf("a region has %d bytes, not whole pages", region.Size())
	}
	for _, typ := range []reflect.Type{reflect.TypeFor[Account](), reflect.TypeFor[Slot](), reflect.TypeFor[Device](), reflect.TypeFor[Refusal]()} {
		if typ.Size()%cacheLine != 0 {
			t.Errorf("%s has %d bytes, not whole cache lines", typ.Name(), typ.Size())
		}
	}
	if reflect.TypeFor[Limits]().Size() != PageSize || reflect.TypeFor[Header]().Size() != PageSize {
		t.Error("Header and Limits are a page each")
	}
}

func TestCapacity(t *testing.T) {
	if Slots > 1<<WordSlotBits {
		t.Errorf("%d slots do not fit %d bits", Slots, WordSlotBits)
	}
	if DoneRefresh >= 1<<WordSeqBits {
		t.Error("an owner rewrites Done too late: the short sequence has wrapped")
	}
}

// A structure without the mark may be laid out as the compiler likes.
func TestEveryStructureHasTheHostsLayout(t *testing.T) {
	mark, seen := reflect.TypeFor[structs.HostLayout](), map[reflect.Type]bool{}
	var visit func(reflect.Type)
	visit = func(typ reflect.Type) {
		for typ.Kind() == reflect.Array {
			typ = typ.Elem()
		}
		if typ.Kind() != reflect.Struct || typ == mark || seen[typ] {
			return
		}
		seen[typ] = true
		if typ.Field(0).Type != mark {
			t.Errorf("%s does not begin with structs.HostLayout", typ.Name())
		}
		for f := range typ.Fields() {
			visit(f.Type)
		}
	}
	visit(reflect.TypeFor[Region]())
}
