"""Languages that are parsed: how a file is known to be of one, and which nodes of its syntax trees define something.

Node kinds are those of the tree-sitter grammars in ast-grep-py. A language of which nothing is listed as a definition (JSON, YAML,
HTML, Markdown) is one for `structure` alone.
"""

import re
from dataclasses import dataclass, field
from functools import cached_property

# What a definition is. Kept as numbers: append only. "scope" is no definition: `impl Cart` only gives its functions a scope.
KINDS = (
    "scope", "function", "method", "class", "struct", "interface", "trait", "enum", "type", "module", "macro", "constant", "variable",
    "property", "selector", "block",
)  # fmt: skip
TYPES = frozenset({"scope", "class", "struct", "interface", "trait", "enum", "type"})  # what makes a function a method
LOCALS = frozenset({"constant", "variable"})  # inside a function nobody else sees them: not listed


@dataclass(frozen=True, slots=True)
class Definition:
    """How one kind of node defines names.

    kind: one of KINDS. name: the way from the node to its names, steps in a row: a field; `field*`, as often as it is there; `<a|b>`,
        the first child of these kinds; `0`, the first named child; `each<a|b>`, all such children. A first step by field takes all.
    when: (way, what must be there): the kind of the node at the end of the way, or its text. The first definition that fits counts.
    scope: the way to a node whose last name is the scope (Go's receivers). outside: only outside functions. whole_file: what follows
        in the file lies inside (a package clause).
    """

    kind: str
    name: str = "name"
    when: tuple[str, frozenset[str]] | None = None
    scope: str = ""
    outside: bool = False
    whole_file: bool = False


@dataclass(frozen=True)
class Language:
    """One grammar.

    name: ast-grep's. extensions: of files, without dot; interpreters: of `#!` lines. definitions: by kind of node. identifiers: kinds of
    nodes whose text is a name that is used there. aliases: other names a query may give it.
    """

    name: str
    extensions: tuple[str, ...]
    identifiers: tuple[str, ...] = ("identifier",)
    definitions: dict[str, tuple[Definition, ...]] = field(default_factory=dict)
    filenames: tuple[str, ...] = ()
    interpreters: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()

    @cached_property
    def node_kinds(self) -> tuple[str, ...]:
        """Every kind of node that symbols look at."""
        return (*self.definitions, *(kind for kind in self.identifiers if kind not in self.definitions))


def _define(text: str) -> dict[str, tuple[Definition, ...]]:
    """Definitions in short: a line `node kind: what [name=way] [scope=way] [when=way:a|b] [outside] [whole_file]`, steps joined by `/`."""
    found: dict[str, tuple[Definition, ...]] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        nodes, _, rest = line.partition(":")
        kind, *options = rest.split()
        given: dict = {}
        for option in options:
            key, _, value = option.partition("=")
            if key == "when":
                way, _, words = value.partition(":")
                given[key] = way, frozenset(words.split("|"))
            else:
                given[key] = value or True
        for node in nodes.split(","):
            found[node.strip()] = (*found.get(node.strip(), ()), Definition(kind, **given))
    return found


_FUNCTIONS = "arrow_function|function_expression|generator_function|function"
_JAVASCRIPT = f"""
    function_declaration, generator_function_declaration: function
    class_declaration, class: class
    method_definition: method
    variable_declarator: function when=value:{_FUNCTIONS}
    variable_declarator: class when=value:class
    variable_declarator: variable
    assignment_expression: function name=left when=right:{_FUNCTIONS}
    pair: method name=key when=value:{_FUNCTIONS}
"""
_TYPESCRIPT = (
    _JAVASCRIPT
    + f"""
    function_signature: function
    abstract_class_declaration: class
    abstract_method_signature, method_signature: method
    interface_declaration: interface
    type_alias_declaration: type
    enum_declaration: enum
    enum_body: constant name=eachname
    enum_assignment: constant
    internal_module, module: module
    public_field_definition: method when=value:{_FUNCTIONS}
    public_field_definition: property
    property_signature: property
"""
)
_JAVASCRIPT += f"""
    field_definition: method name=<property_identifier|private_property_identifier> when=value:{_FUNCTIONS}
    field_definition: property name=<property_identifier|private_property_identifier>
"""
_SCRIPT_NAMES = (
    "identifier", "property_identifier", "private_property_identifier", "shorthand_property_identifier",
    "shorthand_property_identifier_pattern",
)  # fmt: skip
_C = """
    function_definition: function name=declarator/declarator*
    declaration: function name=declarator/declarator* when=declarator/unpointed*:function_declarator outside
    declaration: variable name=eachdeclarator/declarator* outside
    type_definition: type name=eachdeclarator/declarator*
    field_declaration: property name=eachdeclarator/declarator* outside
    struct_specifier: struct when=body:field_declaration_list
    union_specifier: struct when=body:field_declaration_list
    enum_specifier: enum when=body:enumerator_list
    enumerator: constant
    preproc_def, preproc_function_def: macro
"""
_C_NAMES = ("identifier", "field_identifier", "type_identifier")
_SELECTORS = "identifier|plain_value|class_name|id_name|keyframes_name|property_name"

LANGUAGES: tuple[Language, ...] = (  # kept as numbers, from 1: append only
    Language("bash", ("sh", "bash", "zsh", "ksh", "bats", "ebuild"), ("variable_name", "command_name"), _define("""
        function_definition: function
        variable_assignment: variable
    """), (".bashrc", ".bash_profile", ".profile", ".zshrc", "PKGBUILD"), ("sh", "bash", "zsh", "ksh", "dash"), ("sh", "shell")),
    Language("c", ("c", "h"), _C_NAMES, _define(_C)),
    Language("cpp", ("cc", "cpp", "cxx", "c++", "hh", "hpp", "hxx", "h++", "cu", "ino", "ipp"), (
        *_C_NAMES, "namespace_identifier", "destructor_name", "operator_name",
    ), _define("""
        class_specifier: class when=body:field_declaration_list
        field_declaration: method name=declarator/declarator* when=declarator/unpointed*:function_declarator
        namespace_definition: module
        alias_declaration: type
        concept_definition: type
    """ + _C), aliases=("c++",)),
    Language("csharp", ("cs", "csx"), ("identifier",), _define("""
        namespace_declaration: module
        file_scoped_namespace_declaration: module whole_file
        class_declaration, record_declaration: class
        struct_declaration: struct
        interface_declaration: interface
        enum_declaration: enum
        enum_member_declaration: constant
        delegate_declaration: type
        constructor_declaration, method_declaration: method
        destructor_declaration: method
        local_function_statement: function
        property_declaration, event_declaration: property
        variable_declarator: variable
    """), aliases=("c#", "cs")),
    Language("css", ("css",), ("class_name", "id_name", "property_name"), _define("""
        class_selector: selector name=<class_name>
        id_selector: selector name=<id_name>
        keyframes_statement: selector name=<keyframes_name>
    """)),
    Language("dart", ("dart",), ("identifier", "type_identifier"), _define("""
        class_declaration, mixin_declaration: class
        extension_declaration: scope name=<type>
        enum_declaration: enum
        enum_constant: constant
        function_signature, getter_signature, setter_signature: function
        constructor_signature: method name=eachname
        type_alias: type name=<type_identifier>
        initialized_identifier: variable
        static_final_declaration: constant
    """)),
    Language("elixir", ("ex", "exs"), ("identifier", "alias"), _define("""
        call: module name=<arguments>/0 when=target:defmodule|defprotocol
        call: scope name=<arguments>/0 when=target:defimpl
        call: macro name=<arguments>/0/left*/target* when=target:defmacro|defmacrop|defguard|defguardp
        call: function name=<arguments>/0/left*/target* when=target:def|defp|defdelegate|defn|defnp
    """), interpreters=("elixir",), aliases=("ex",)),
    Language("go", ("go",), ("identifier", "field_identifier", "type_identifier", "package_identifier"), _define("""
        package_clause: module name=<package_identifier> whole_file
        function_declaration: function
        method_declaration: method scope=receiver/<parameter_declaration>/type/<type_identifier|generic_type|pointer_type>*
        method_elem: method
        type_spec: struct when=type:struct_type
        type_spec: interface when=type:interface_type
        type_spec, type_alias: type
        field_declaration: property name=eachname
        const_spec: constant name=eachname
        var_spec: variable name=eachname
    """), aliases=("golang",)),
    Language("haskell", ("hs",), ("variable", "name", "constructor"), _define("""
        header: module name=<module> whole_file
        data_type, newtype: type
        type_synonym: type
        class: interface
        instance: scope
        signature: function
        function, bind: function
        data_constructor: constant name=<prefix|record>/name
        newtype_constructor: constant
    """), interpreters=("runhaskell", "runghc"), aliases=("hs",)),
    Language("hcl", ("hcl", "tf", "tfvars", "nomad"), ("identifier",), _define("""
        block: block name=each<string_lit>
        attribute: variable name=<identifier>
    """), aliases=("terraform",)),
    Language("html", ("html", "htm", "xhtml"), ()),
    Language("java", ("java",), ("identifier", "type_identifier"), _define("""
        package_declaration: module name=<scoped_identifier|identifier> whole_file
        class_declaration, record_declaration: class
        interface_declaration, annotation_type_declaration: interface
        enum_declaration: enum
        enum_constant: constant
        constructor_declaration, compact_constructor_declaration, method_declaration: method
        annotation_type_element_declaration: method
        field_declaration, constant_declaration: variable name=eachdeclarator/name
    """)),
    Language("javascript", ("js", "mjs", "cjs", "jsx"), _SCRIPT_NAMES, _define(_JAVASCRIPT), (), ("node", "nodejs"), ("js",)),
    Language("json", ("json", "jsonc", "geojson"), ()),
    Language("kotlin", ("kt", "kts"), ("simple_identifier", "type_identifier"), _define("""
        package_header: module name=<identifier> whole_file
        class_declaration, object_declaration: class name=<type_identifier>
        companion_object: scope name=<type_identifier>
        enum_entry: constant name=<simple_identifier>
        function_declaration: function name=<simple_identifier>
        property_declaration: variable name=<variable_declaration>/<simple_identifier>
        type_alias: type name=<type_identifier>
    """), aliases=("kt",)),
    Language("lua", ("lua",), ("identifier",), _define("""
        function_declaration: function
        assignment_statement: function name=<variable_list>/name when=<expression_list>/value:function_definition
        variable_declaration: variable name=<assignment_statement>/<variable_list>/name
    """), interpreters=("lua", "luajit")),
    Language("nix", ("nix",), ("identifier",), _define("binding: variable name=<attrpath>")),
    Language("php", ("php", "phtml", "php5", "inc"), ("name",), _define("""
        namespace_definition: module when=body:compound_statement|declaration_list
        namespace_definition: module whole_file
        class_declaration: class
        interface_declaration: interface
        trait_declaration: trait
        enum_declaration: enum
        enum_case: constant
        const_element: constant name=<name>
        property_element: property name=name/<name>
        method_declaration: method
        function_definition: function
    """), interpreters=("php",)),
    Language("python", ("py", "pyi", "pyw", "py3", "bzl"), ("identifier",), _define("""
        function_definition: function
        class_definition: class
        type_alias_statement: type name=left/<identifier|generic_type>/<identifier>*
        assignment: variable name=left
    """), ("SConstruct", "SConscript", "wscript", "BUILD", "WORKSPACE"), ("python", "python2", "python3", "pypy", "pypy3"), ("py",)),
    Language("ruby", ("rb", "rake", "gemspec", "ru", "rbw"), ("identifier", "constant"), _define("""
        module: module
        class: class
        method, singleton_method: function
        assignment: constant name=left when=left:constant
    """), ("Rakefile", "Gemfile", "Vagrantfile", "Guardfile"), ("ruby", "jruby"), ("rb",)),
    Language("rust", ("rs",), ("identifier", "field_identifier", "type_identifier"), _define("""
        mod_item: module
        struct_item, union_item: struct
        enum_item: enum
        enum_variant: constant
        trait_item: trait
        impl_item: scope name=type
        type_item, associated_type: type
        function_item, function_signature_item: function
        field_declaration: property
        const_item, static_item: constant
        macro_definition: macro
    """), interpreters=("rust-script",), aliases=("rs",)),
    Language("scala", ("scala", "sc", "sbt"), ("identifier", "type_identifier"), _define("""
        package_clause: module whole_file
        trait_definition: trait
        class_definition, object_definition: class
        enum_definition: enum
        simple_enum_case, full_enum_case: constant
        function_definition, function_declaration: function
        val_definition, var_definition, val_declaration, var_declaration: variable name=pattern
        type_definition: type
    """), interpreters=("scala",)),
    Language("solidity", ("sol",), ("identifier",), _define("""
        contract_declaration, library_declaration: class
        interface_declaration: interface
        function_definition, modifier_definition: function
        struct_declaration: struct
        enum_declaration: enum
        enum_value: constant name=.
        event_definition, error_declaration: type
        state_variable_declaration: variable
    """), aliases=("sol",)),
    Language("swift", ("swift",), ("simple_identifier", "type_identifier"), _define("""
        class_declaration: struct when=declaration_kind:struct
        class_declaration: enum when=declaration_kind:enum
        class_declaration: scope when=declaration_kind:extension
        class_declaration: class
        protocol_declaration: interface
        function_declaration, protocol_function_declaration: function
        init_declaration: method
        property_declaration, protocol_property_declaration: variable name=name/<simple_identifier>
        enum_entry: constant name=eachname
        typealias_declaration: type
    """), interpreters=("swift",)),
    Language("tsx", ("tsx",), (*_SCRIPT_NAMES, "type_identifier"), _define(_TYPESCRIPT)),
    Language("typescript", ("ts", "mts", "cts"), (*_SCRIPT_NAMES, "type_identifier"), _define(_TYPESCRIPT), (), (
        "deno", "ts-node", "bun",
    ), ("ts",)),
    Language("yaml", ("yaml", "yml"), ()),
    Language("markdown", ("md", "markdown"), ()),
    Language("zig", ("zig",), ("identifier",), _define("""
        function_declaration: function
        variable_declaration: struct name=<identifier> when=<struct_declaration>:struct_declaration
        variable_declaration: struct name=<identifier> when=<union_declaration>:union_declaration
        variable_declaration: enum name=<identifier> when=<enum_declaration>:enum_declaration
        variable_declaration: variable name=<identifier>
        container_field: property
        test_declaration: function name=<string>
    """)),
)  # fmt: skip

BY_NAME = {key: language for language in LANGUAGES for key in (*language.aliases, language.name)}
NUMBERS = {language.name: number for number, language in enumerate(LANGUAGES, 1)}
_BY_EXTENSION = {extension: language for language in LANGUAGES for extension in language.extensions}
_BY_FILENAME = {name: language for language in LANGUAGES for name in language.filenames}
FILENAME_EXTENSIONS = frozenset(name.rpartition(".")[2].lower() if "." in name else "" for name in _BY_FILENAME)  # of such names
_BY_INTERPRETER = {name: language for language in LANGUAGES for name in language.interpreters}
_SHEBANG = re.compile(rb"#!\s*(?:\S*/)?env\s+(?:-\S+\s+|\w+=\S*\s+)*(\S+)|#!\s*(\S+)")
_CPP_HEADER = re.compile(
    rb"^\s*(?:namespace\s+[\w:]*\s*\{|template\s*<|class\s+\w+[\w\s:,<>]*\{|(?:public|private|protected)\s*:|using\s+\w)", re.MULTILINE
)
_HEADER_BYTES = 1 << 16


def language_of_path(path: str) -> Language | None:
    """The language of a file by its extension or name; None where these say nothing."""
    name = path.rpartition("/")[2]
    stem, dot, extension = name.rpartition(".")
    return (_BY_EXTENSION.get(extension.lower()) if dot and stem else None) or _BY_FILENAME.get(name)


def is_cpp_header(text: bytes | memoryview) -> bool:
    """Whether a `.h` file is C++: by what only that has, in its first 64 KiB."""
    return _CPP_HEADER.search(text[:_HEADER_BYTES]) is not None


def language_of_shebang(head: bytes) -> Language | None:
    """The language of a script by the interpreter in its first line."""
    shebang = _SHEBANG.match(head)
    if shebang is None:
        return None
    program = (shebang[1] or shebang[2]).rpartition(b"/")[2].decode("utf-8", "replace")
    return _BY_INTERPRETER.get(program) or _BY_INTERPRETER.get(program.rstrip("0123456789."))
