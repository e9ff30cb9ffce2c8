package abi

import (
	"reflect"
	"structs"
	"testing"

	"ration/check/expect"
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
	expect.Equal(t, line(account, "Phase"), line(account, "A"), "Account.Phase and A are on two cache lines")
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
		f := region.Field(i)
		expect.True(t, f.Offset%PageSize == 0 || f.Name == "Compute", "Region.", f.Name, "begins at", f.Offset, "not on a page")
	}
	if region.Size()%PageSize != 0 {
		t.Errorf("a region has %d bytes, not whole pages", region.Size())
	}
	for _, typ := range []reflect.Type{reflect.TypeFor[Account](), reflect.TypeFor[Slot](), reflect.TypeFor[Device](), reflect.TypeFor[Refusal]()} {
		if typ.Size()%cacheLine != 0 {
			t.Errorf("%s has %d bytes, not whole cache lines", typ.Name(), typ.Size())
		}
	}
	expect.True(t, reflect.TypeFor[Limits]().Size() == PageSize && reflect.TypeFor[Header]().Size() == PageSize,
		"Header and Limits are a page each")
}

func TestCapacity(t *testing.T) {
	expect.True(t, Slots <= 1<<WordSlotBits, Slots, "slots do not fit", WordSlotBits, "bits")
	expect.True(t, DoneRefresh < 1<<WordSeqBits, "an owner rewrites Done too late: the short sequence has wrapped")
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
