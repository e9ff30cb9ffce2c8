// Command mutants checks that the tests can fail. It breaks one promise at a time, by changing a line in
// a copy of this repository, and runs the narrow test that must notice:
//
//	mutants                 all of the list
//	mutants -turn 3         every tenth of it, from the fourth on
//	mutants -run 'ledger'   those with such a name
//
// A mutant that no test notices has survived, and is a failure. So is one whose old text is not in its
// file exactly once any more, one that does not compile, one with which its test does not end, and a
// test that fails without its mutant: none of these tests anything.
//
// The file list has the mutants, in paragraphs of lines that each begin with a word:
//
//	mutant NAME
//	promise TEXT     the beginning of a promise that it breaks, as README.md or the page has it; may be repeated
//	file PATH
//	after TEXT       the old text is the first after this one, which is in the file once; may be left out
//	- TEXT           the old text
//	+ TEXT           the new text; without it, the old text is removed
//	test KIND ARGS   what must notice
//
// Kinds of tests:
//
//	go PACKAGE RUN         go test -run RUN PACKAGE
//	native PACKAGE RUN     the same, of a test that uses the C library or the stand-in driver
//	shim NAME...           programs and scripts of shim/test, by their names there
//	module FOLDER PACKAGE RUN   go test in a module of its own
//
// A promise without a mutant is in the list as well, with the reason:
//
//	without TEXT
//	reason TEXT
//
// go test checks that each promise of README.md, and each row of the tables of docs/protocols.md and of
// docs/security.md, begins as one of these texts does.
package main
