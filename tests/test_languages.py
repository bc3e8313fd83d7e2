"""What is defined in languages other than Python, each in a text that was read by hand; and what language a file is of."""

import re

import numpy as np
import pytest

from shards.documents import Documents
from shards.identity import content_hash
from shards.languages import BY_NAME, KINDS, LANGUAGES, NUMBERS
from shards.segment import pack_entries
from shards.syntax_paths import Paths, languages_of, module_of, own_places
from shards.syntax_symbols import DocumentSymbols, symbols_of
from shards.types import Entry


def listed(symbols: DocumentSymbols) -> list[str]:
    """Definitions as "kind scope.name", those that only give a scope left out."""
    paths: list[str] = []
    for at, one in enumerate(symbols.definitions):
        paths.append((f"{paths[at - one.back]}." if one.back else "") + one.name.decode())
    return [f"{KINDS[d.kind]} {path}" for d, path in zip(symbols.definitions, paths, strict=True) if d.kind]


DEFINED = {
    "bash": (
        r"""NAME=1
greet() { local x=2; echo "$x"; }
function bye { greet; }
""",
        """constant NAME, function greet, function bye""",
    ),
    "c": (
        r"""#include <stdio.h>
#define LIMIT 10
#define SQUARE(x) ((x)*(x))
struct point { int x; int *y; };
enum color { RED, GREEN };
union u { int a; };
typedef struct { int z; } box_t;
typedef int (*callback)(int);
static int counter = 0;
int decl(int a);
static char *find(const char *s, int n) { return decl(n); }
int (*pick(void))(int) { return 0; }
""",
        """macro LIMIT, macro SQUARE, struct point, property point.x, property point.y, enum color, constant color.RED, constant
        color.GREEN, struct u, property u.a, type box_t, property box_t.z, type callback, variable counter, function decl,
        function find, function pick""",
    ),
    "cpp": (
        r"""namespace geo {
template <typename T> class Box : public Base {
  public: Box(); ~Box() {} T get() const { return v; }
  bool operator==(const Box& o) const { return true; } T v; };
struct P { int x; };
enum class Color { Red };
using Id = int;
int Box<int>::size() { return 1; }
}
void geo::Shape::draw(int a) { paint(a); }
template <class T> T twice(T x) { return x + x; }
""",
        """module geo, class geo.Box, method geo.Box.Box, method geo.Box.~Box, method geo.Box.get, method geo.Box.operator==,
        property geo.Box.v, struct geo.P, property geo.P.x, enum geo.Color, constant geo.Color.Red, type geo.Id, method
        geo.Box.size, method geo.Shape.draw, function twice""",
    ),
    "csharp": (
        r"""namespace Shop.Core {
  public interface ICart { int Count { get; } }
  public class Cart : ICart {
    const int Max = 3; private int n;
    public Cart() {}
    public int Count { get; set; }
    public T Get<T>(string k) { int Local() => 1; return Make<T>(k); }
    public event System.Action Done;
  }
  struct S {} enum E { A, B } record R(int X); delegate void D(int a);
}
""",
        """module Shop, module Shop.Core, interface Shop.Core.ICart, property Shop.Core.ICart.Count, class Shop.Core.Cart,
        property Shop.Core.Cart.Max, property Shop.Core.Cart.n, method Shop.Core.Cart.Cart, property Shop.Core.Cart.Count,
        method Shop.Core.Cart.Get, function Shop.Core.Cart.Get.Local, property Shop.Core.Cart.Done, struct Shop.Core.S, enum
        Shop.Core.E, constant Shop.Core.E.A, constant Shop.Core.E.B, class Shop.Core.R, type Shop.Core.D""",
    ),
    "css": (
        r""".card { color: red; } #main .x:hover { --gap: 1px; } @keyframes spin { from {} } :root { --accent: #fff }
""",
        """selector card, selector main, selector x, selector spin""",
    ),
    "dart": (
        r"""class Cart extends Base with M { final int n; Cart(this.n); Cart.empty(): n = 0; int total(int a) => a; int get size => n; }
mixin M {} enum E { a, b } extension X on String { int twice() => 2; }
int top(int a) { return a; }
const limit = 3;
typedef F = int Function(int);
""",
        """class Cart, property Cart.n, method Cart.Cart, method Cart.Cart, method Cart.empty, method Cart.total, method
        Cart.size, class M, enum E, constant E.a, constant E.b, method String.twice, function top, constant limit, type F""",
    ),
    "elixir": (
        r"""defmodule Shop.Cart do
  @limit 3
  def add(item, n \\ 1), do: put(item)
  defp put(item) when is_nil(item) do
    :ok
  end
  def noargs do 1 end
  defmacro mac(x), do: x
end
defprotocol Size do
  def size(d)
end
""",
        """module Shop, module Shop.Cart, function Shop.Cart.add, function Shop.Cart.put, function Shop.Cart.noargs, macro
        Shop.Cart.mac, module Size, function Size.size""",
    ),
    "go": (
        r"""package shop
import "fmt"
const Limit = 3
var ( a, b = 1, 2 )
type Cart struct { n int; Name string }
type Store interface { Get(k string) int }
type ID = int
func New() *Cart { return &Cart{} }
func (c *Cart) Add(n int) { x := 1; fmt.Println(x) }
func Map[T any](x T) T { return x }
func (l List[T]) Len() int { return 0 }
""",
        """module shop, constant shop.Limit, variable shop.a, variable shop.b, struct shop.Cart, property shop.Cart.n, property
        shop.Cart.Name, interface shop.Store, method shop.Store.Get, type shop.ID, function shop.New, method shop.Cart.Add,
        function shop.Map, method shop.List.Len""",
    ),
    "haskell": (
        r"""module Shop.Cart where
data Cart = Cart { items :: Int } | Empty
newtype Id = Id Int
type Name = String
class Size a where
  size :: a -> Int
instance Size Cart where
  size c = items c
total :: Int -> Int
total 0 = 1
total n = n + helper n
  where helper x = x
""",
        """module Shop, module Shop.Cart, type Shop.Cart.Cart, constant Shop.Cart.Cart.Cart, constant Shop.Cart.Cart.Empty, type
        Shop.Cart.Id, constant Shop.Cart.Id.Id, type Shop.Cart.Name, interface Shop.Cart.Size, method Shop.Cart.Size.size,
        method Shop.Cart.Size.size, function Shop.Cart.total, function Shop.Cart.total, function Shop.Cart.total, function
        Shop.Cart.total.helper""",
    ),
    "hcl": (
        r"""variable "region" { default = "x" }
resource "aws_instance" "web" { ami = var.region }
locals { a = 1 }
""",
        """block region, variable region.default, block aws_instance, block web, variable web.ami, variable a""",
    ),
    "java": (
        r"""package shop.core;
public class Cart<T> extends Base implements Size {
  static final int MAX = 3; int n;
  public Cart() { super(); }
  public <U> U get(String key) { int local = 1; return make(key); }
  enum State { OPEN, CLOSED }
  interface Inner { void run(); }
  record Pt(int x) {}
  @interface Mark {}
}
""",
        """module shop, module shop.core, class shop.core.Cart, constant shop.core.Cart.MAX, property shop.core.Cart.n, method
        shop.core.Cart.Cart, method shop.core.Cart.get, enum shop.core.Cart.State, constant shop.core.Cart.State.OPEN,
        constant shop.core.Cart.State.CLOSED, interface shop.core.Cart.Inner, method shop.core.Cart.Inner.run, class
        shop.core.Cart.Pt, interface shop.core.Cart.Mark""",
    ),
    "javascript": (
        r"""const LIMIT = 3; let a = 1, {b} = c; var old;
function top(x) { const inner = () => 1; var y = 2; function nested() {} return y; }
const arrow = (x) => x, fe = function named() {};
class Cart extends Base { static n = 1; #p = 2; constructor() { super(); } add(x) { this.x = x; }
  get size() { return 1; } handler = () => {}; }
export default function main() {}
export async function* gen() {}
Cart.prototype.drop = function () {};
module.exports.helper = () => 1;
const o = { method() {}, key: function () {}, v: 1 };
""",
        """constant LIMIT, variable a, variable old, function top, function top.inner, function top.nested, function arrow,
        function fe, class Cart, property Cart.n, property Cart.#p, method Cart.constructor, method Cart.add, method
        Cart.size, method Cart.handler, function main, function gen, method Cart.drop, function helper, variable o, method
        o.method, method o.key""",
    ),
    "kotlin": (
        r"""package shop
const val LIMIT = 3
class Cart(val n: Int) : Base() {
  val m = 1
  fun add(x: Int): Int { val y = 1; return y }
  companion object {
    fun make() = Cart(1)
  }
}
interface Size { fun size(): Int }
object Single {
  fun go() {}
}
enum class E { A, B }
data class P(val x: Int)
fun String.twice() = this + this
fun top() = 1
typealias Id = Int
""",
        """module shop, constant shop.LIMIT, class shop.Cart, property shop.Cart.m, method shop.Cart.add, method shop.Cart.make,
        class shop.Size, method shop.Size.size, class shop.Single, method shop.Single.go, class shop.E, constant shop.E.A,
        constant shop.E.B, class shop.P, function shop.twice, function shop.top, type shop.Id""",
    ),
    "lua": (
        r"""local M = {}
local function helper(x) return x end
function top() end
function M.add(x) return helper(x) end
function M:size() end
M.drop = function() end
local f = function() end
""",
        """variable M, function helper, function top, method M.add, method M.size, method M.drop, function f""",
    ),
    "nix": (
        r"""{ pkgs }: let helper = x: x; version = "1"; in { name = helper "a"; inherit version; }
""",
        """variable helper, variable version, variable name""",
    ),
    "php": (
        r"""<?php
namespace Shop\Core;
const LIMIT = 3;
define('X', 1);
interface Size { public function size(): int; }
trait T { function t() {} }
abstract class Cart extends Base implements Size { const MAX = 3; private $n = 1; public function add(int $x) { return helper($x); } }
enum Suit: string { case Hearts = 'H'; }
function helper($x) { return $x; }
""",
        """module Shop, module Shop.Core, constant Shop.Core.LIMIT, interface Shop.Core.Size, method Shop.Core.Size.size, trait
        Shop.Core.T, method Shop.Core.T.t, class Shop.Core.Cart, constant Shop.Core.Cart.MAX, property Shop.Core.Cart.n,
        method Shop.Core.Cart.add, enum Shop.Core.Suit, constant Shop.Core.Suit.Hearts, function Shop.Core.helper""",
    ),
    "ruby": (
        r"""module Shop
  LIMIT = 3
  class Cart < Base
    attr_accessor :name, :size
    def add(x) = x
    def self.make; new; end
    def empty?; true; end
    def ==(o); end
    class << self
      def build; end
    end
  end
  class A::B; end
end
def top; end
""",
        """module Shop, constant Shop.LIMIT, class Shop.Cart, method Shop.Cart.add, method Shop.Cart.make, method
        Shop.Cart.empty?, method Shop.Cart.==, method Shop.Cart.build, class Shop.A.B, function top""",
    ),
    "rust": (
        r"""mod geo { pub fn inner() {} }
const LIMIT: usize = 3; static S: u8 = 1;
pub struct Cart<T> { n: T }
enum State { Open, Closed(u8) }
union U { a: u8 }
type Id = u32;
pub trait Size { fn size(&self) -> usize; fn twice(&self) -> usize { 2 } }
impl<T> Size for Cart<T> { fn size(&self) -> usize { self.n } }
impl Cart<u8> { pub fn new() -> Self { helper() } }
fn helper() { let x = 1; }
macro_rules! mac { () => {} }
""",
        """module geo, function geo.inner, constant LIMIT, constant S, struct Cart, property Cart.n, enum State, constant
        State.Open, constant State.Closed, struct U, property U.a, type Id, trait Size, method Size.size, method Size.twice,
        method Cart.size, method Cart.new, function helper, macro mac""",
    ),
    "scala": (
        r"""package shop
trait Size { def size: Int; val k = 1 }
class Cart(n: Int) extends Base { val x = 1; var y = 2; def add(a: Int): Int = { val z = 1; helper(z) } }
object Cart { def apply(): Cart = new Cart(1) }
case class P(x: Int)
enum Color { case Red, Green }
def top(x: Int) = x
type Id = Int
""",
        """module shop, trait shop.Size, method shop.Size.size, property shop.Size.k, class shop.Cart, property shop.Cart.x,
        property shop.Cart.y, method shop.Cart.add, class shop.Cart, method shop.Cart.apply, class shop.P, enum shop.Color,
        constant shop.Color.Red, constant shop.Color.Green, function shop.top, type shop.Id""",
    ),
    "solidity": (
        r"""pragma solidity ^0.8.0;
interface I { function f() external; }
library L { function g(uint a) internal {} }
contract Token is I { uint public total; event Sent(uint a); error Bad(); modifier only() { _; }
  struct S { uint a; } enum E { A } constructor() {} function f() public {}
  mapping(address => uint) balances; }
function free(uint x) pure {}
""",
        """interface I, method I.f, class L, method L.g, class Token, property Token.total, type Token.Sent, type Token.Bad,
        method Token.only, struct Token.S, enum Token.E, constant Token.E.A, method Token.f, property Token.balances, function
        free""",
    ),
    "swift": (
        r"""import Foundation
let limit = 3
class Cart: Base {
  var n = 1
  let m: Int
  init() {}
  func add(_ x: Int) -> Int { let y = 1; return y } }
struct P { var x: Int }
enum E { case a, b }
protocol Size { func size() -> Int; var k: Int { get } }
extension Cart { func drop() {} }
func top() {}
typealias Id = Int
actor A { func go() {} }
""",
        """variable limit, class Cart, property Cart.n, property Cart.m, method Cart.init, method Cart.add, struct P, property
        P.x, enum E, constant E.a, constant E.b, interface Size, method Size.size, property Size.k, method Cart.drop, function
        top, type Id, class A, method A.go""",
    ),
    "typescript": (
        r"""namespace Geo { export const k = 1; export function area() {} }
interface Size { n: number; size(): number; }
type Id = string;
enum Color { Red, Green }
abstract class Cart<T> extends Base implements Size { private n: T; static readonly MAX = 3;
  constructor(private x: number) { super(); } size(): number { return 1; } abstract go(): void; h = () => 1; }
export const arrow = <T,>(x: T): T => x;
function over(x: number): void; function over(x: any) {}
declare module "m" { export function dm(): void; }
export default class Foo {}
""",
        """module Geo, variable Geo.k, function Geo.area, interface Size, property Size.n, method Size.size, type Id, enum Color,
        constant Color.Red, constant Color.Green, class Cart, property Cart.n, property Cart.MAX, method Cart.constructor,
        method Cart.size, method Cart.go, method Cart.h, function arrow, function over, function over, module m, function
        m.dm, class Foo""",
    ),
    "tsx": (
        r"""export const App: FC = () => <div a={b}>text</div>;
function Widget(props: P) { return <Foo.Bar/>; }
""",
        """function App, function Widget""",
    ),
    "zig": (
        r"""const std = @import("std");
pub const Cart = struct { n: u8, pub fn add(self: *Cart) void { helper(); } };
fn helper() void { const x = 1; _ = x; }
const E = enum { a, b };
var g: u32 = 0;
test "adds" { helper(); }
""",
        """variable std, struct Cart, property Cart.n, method Cart.add, function helper, enum E, property E.a, property E.b,
        variable g, function adds""",
    ),
}


@pytest.mark.parametrize("language", DEFINED)
def test_definitions_are_listed_with_kind_and_scope(language):
    source, expected = DEFINED[language]
    assert listed(symbols_of(source.encode(), language)) == " ".join(expected.split()).split(", ")


def test_every_language_with_definitions_has_a_text_here():
    assert {language.name for language in LANGUAGES if language.definitions} == {*DEFINED, "python"}


def test_every_kind_of_node_in_the_table_exists_in_its_grammar():
    from ast_grep_py import SgRoot

    for language in LANGUAGES:
        ways = [way for each in language.definitions.values() for d in each for way in (d.name, d.scope, d.when[0] if d.when else "")]
        inside = {kind for way in ways for kinds in re.findall(r"<([^>]*)>", way) for kind in kinds.split("|")}
        root = SgRoot("a", language.name).root()
        for kind in {*language.node_kinds, *inside}:
            root.find_all(kind=kind)  # raises RuntimeError for a kind that it does not know


def test_uses_are_counted_apart_from_definitions():
    symbols = symbols_of("def größe(a): return a\n# größe\nx = größe(1) + größe(2)  # größe\n'größe'\n".encode(), "python")
    assert {name.decode(): tuple(use) for name, use in symbols.uses.items()} == {"a": (12, 2), "größe": (39, 2)}
    assert [(d.name.decode(), d.start, d.end) for d in symbols.definitions] == [("größe", 0, 24), ("x", 35, 62)]


def documents_at(*placed: tuple[str, str]):
    """Documents and their entries, from (text, paths separated by blanks); and the rows of the texts."""
    bodies = [text.encode() for text, _ in placed]
    documents = Documents.pack((content_hash(body), body, "code") for body in bodies)
    entries = [Entry("main", path, content_hash(text.encode()), 1, 0) for text, paths in placed for path in paths.split()]
    order = [documents.hashes.tolist().index(list(content_hash(body))) for body in bodies]
    return documents, pack_entries(entries), order


@pytest.mark.parametrize(
    ("text", "paths", "expected"),
    [
        ("x = 1", "a/b.py", "python"),
        ("x = 1", "a/B.PY", "python"),
        ("x = 1", "a/b.txt", None),
        ("x = 1", "a/b.txt c.py", "python"),
        ("#!/usr/bin/env -S python3.11 -u\n", "bin/tool", "python"),
        ("#!/bin/sh\n", "bin/tool", "bash"),
        ("#!/bin/sh\n", "bin/tool.txt", None),
        ("plain text", "LICENSE", None),
        ("task :x", "Rakefile", "ruby"),
        ("PS1=x", "home/.bashrc", "bash"),
        ("int f(void);", "f.h", "c"),
        ("#pragma once\nnamespace geo {\nint f();\n}", "f.h", "cpp"),
        ("a", "a.ts b.js", "javascript"),
        ("a", "b.js a.ts", "javascript"),
        ("a", "rows.csv#17", None),
    ],
)
def test_a_document_is_of_the_language_of_its_paths_else_of_its_first_line(text, paths, expected):
    documents, entries, _ = documents_at((text, paths))
    number = int(languages_of(documents, own_places(documents, entries))[0])
    assert (LANGUAGES[number - 1].name if number else None) == expected


def test_paths_that_lie_in_another_segment_decide_as_well():
    documents, entries, (row, other) = documents_at(("x = 1", "a.txt"), ("y = 1", "b.py"))
    _, elsewhere, _ = documents_at(("x = 1", "moved/a.rb"))
    places = [*own_places(documents, entries)(), (elsewhere, np.array([0]), np.array([row]))]
    assert languages_of(documents, lambda: places)[[row, other]].tolist() == [NUMBERS["ruby"], NUMBERS["python"]]
    assert Paths(lambda: places).of(row) == ["a.txt", "moved/a.rb"]


@pytest.mark.parametrize(
    ("path", "expected"),
    [("asyncio/events.py", "asyncio.events"), ("json/__init__.py", "json"), ("a.b.js", "a"), ("src/lib.rs", "src"), ("LICENSE", "LICENSE")],
)
def test_a_path_is_a_scope(path, expected):
    assert ".".join(module_of(path)) == expected


def test_names_of_languages_are_found_as_ast_grep_writes_them():
    assert [BY_NAME[name].name for name in ("c++", "ts", "golang", "c#")] == ["cpp", "typescript", "go", "csharp"]
