// Makes the browser's small Python: the modules that the calculator imports, compiled, in uncompressed zips; and a
// snapshot, which is an image of a started Python's memory, so that the reader's browser need not start Python.
//
// node runtime.mjs PYODIDE CALCULATOR REQUESTS OUT
//   PYODIDE     folder of the npm package
//   CALCULATOR  the package's folder
//   REQUESTS    JSON lists of [function of calculator.browser, request]: `every` runs while imports are recorded,
//               `first` runs before the snapshot is taken
//   OUT         receives stdlib.zip, calculator.zip, exercises.zip and snapshot.wasm
//
// Pyodide ships its standard library as source and compiles 145 modules at each start. This program starts Pyodide
// once, runs the calculator with every request, and compiles the modules that are imported by then. The zips are not
// compressed, because the web server's compression of the whole file is better.
//
// snapshot.wasm is not WebAssembly; it has that name so that web servers compress it. It contains the difference
// between the memory of a Python that has imported all these modules and answered the first requests, and the memory of
// a fresh instance. The fresh memory comes from pyodide.asm.wasm anyway, so that 1 MB less is sent.
// site/javascripts/python/snapshot.mjs reads the file.

import fs from "node:fs";
import path from "node:path";
import { pathToFileURL } from "node:url";

// Prints the message only: a stack trace would contain Pyodide's source, which is one very long line.
process.on("uncaughtException", (error) => {
  console.error(String(error.message).slice(0, 2000));
  process.exit(1);
});

const [pyodideFolder, calculatorFolder, requestsFile, outFolder] = process.argv.slice(2);
const inOut = (name) => path.join(outFolder, name);
const exercise = (which) => `
import json
from calculator import browser
for ask, request in json.loads(open("/requests.json").read())["${which}"]:
    getattr(browser, ask)(json.dumps(request))
`;
/** Python: `compiled(source, shown_as)`. */
const COMPILING = `
import ast
import importlib.util
import marshal
from types import CodeType

class Bare(ast.NodeTransformer):
    """Removes annotations of functions. Those of classes stay: dataclasses read them."""

    def visit_FunctionDef(self, node):
        self.generic_visit(node)
        node.returns = None
        given = node.args
        for argument in (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg):
            if argument:
                argument.annotation = None
        return node

def without_lines(code):
    """The same code without the table of its line numbers, which takes a fifth of it; only tracebacks show them."""
    constants = [without_lines(one) if isinstance(one, CodeType) else one for one in code.co_consts]
    return code.replace(co_linetable=b"", co_consts=tuple(constants))

def compiled(source, shown_as):
    """Bytes of a .pyc that is never checked against its source."""
    tree = ast.parse(source)
    # Parts of the standard library, such as functools.singledispatch, read annotations of functions.
    if shown_as.startswith("/source/"):
        tree = ast.fix_missing_locations(Bare().visit(tree))
    code = without_lines(compile(tree, shown_as, "exec", dont_inherit=True, optimize=2))
    return importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little") + bytes(8) + marshal.dumps(code)
`;
const { loadPyodide } = await import(pathToFileURL(path.join(pyodideFolder, "pyodide.mjs")).href);

await makeSnapshot(await makeZips());

async function makeZips() {
  const python = await loadPyodide({ indexURL: pyodideFolder + path.sep });
  copyIn(python, calculatorFolder, "/source/calculator");
  python.FS.writeFile("/requests.json", fs.readFileSync(requestsFile));
  python.runPython(`
import sys
sys.path.append("/source")
${exercise("every")}
imported = {name: module.__spec__ for name, module in list(sys.modules.items()) if getattr(module, "__spec__", None)}

import io
import pathlib
import zipfile
${COMPILING}

def stored_zip(files):
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w", zipfile.ZIP_STORED) as archive:
        for name, content in sorted(files.items()):
            archive.writestr(zipfile.ZipInfo(name, date_time=(2020, 1, 1, 0, 0, 0)), content)
    return memory.getvalue()

library = next(entry for entry in sys.path if entry.endswith(".zip"))
wanted = {spec.origin for spec in imported.values() if spec.origin and spec.origin.startswith(library + "/")}
wanted |= {f"{library}/encodings/{name}.py" for name in ("ascii", "latin_1", "idna")}
with zipfile.ZipFile(library) as archive:
    stdlib = {}
    for origin in wanted:
        name = origin.removeprefix(library + "/")
        stdlib[name + "c"] = compiled(archive.read(name), origin)
# Without the modules that only the command line or a peer imports.
program = {
    str(pathlib.Path(spec.origin).relative_to("/source").with_suffix(".pyc")): compiled(
        pathlib.Path(spec.origin).read_bytes(), spec.origin
    )
    for spec in imported.values()
    if spec.origin and spec.origin.startswith("/source/")
}
# Only the pages with exercises need those, so they are neither in the snapshot nor in the calculator's zip.
EXERCISES = "calculator.exercises"
in_snapshot = [name for name in imported if name != "__main__" and not name.startswith(EXERCISES)]
pathlib.Path("/imported.txt").write_text(" ".join(in_snapshot))
exercises = {name: program.pop(name) for name in list(program) if name.startswith(EXERCISES.replace(".", "/"))}
pathlib.Path("/exercises.zip").write_bytes(stored_zip(exercises))
pathlib.Path("/stdlib.zip").write_bytes(stored_zip(stdlib))
pathlib.Path("/calculator.zip").write_bytes(stored_zip(program))
`);
  for (const name of ["stdlib.zip", "calculator.zip", "exercises.zip"]) fs.writeFileSync(inOut(name), python.FS.readFile("/" + name));
  return python.FS.readFile("/imported.txt");
}

async function makeSnapshot(imported) {
  let fresh = null;
  const usual = WebAssembly.instantiate;
  WebAssembly.instantiate = async (...given) => {
    const made = await usual(...given);
    if (made.instance?.exports.memory) fresh = new Uint8Array(made.instance.exports.memory.buffer).slice();
    return made;
  };
  const python = await loadPyodide({
    indexURL: pyodideFolder + path.sep,
    stdLibURL: inOut("stdlib.zip"),
    _makeSnapshot: true,
  });
  WebAssembly.instantiate = usual;
  python.FS.writeFile("/imported.txt", imported);
  python.FS.writeFile("/calculator.zip", fs.readFileSync(inOut("calculator.zip")));
  python.FS.writeFile("/requests.json", fs.readFileSync(requestsFile));
  python.runPython(`
import sys
sys.path.append("/calculator.zip")
import importlib
for name in open("/imported.txt").read().split():
    importlib.import_module(name)
${exercise("first")}
sys.path.remove("/calculator.zip")
import gc
gc.collect()
gc.freeze()
`);
  const image = python.makeMemorySnapshot();
  const head = image.length - fresh.length;
  // A heap that has grown cannot be loaded again (github.com/pyodide/pyodide/issues/6254).
  if (head < 0 || head > 4096) throw new Error(`The snapshot has ${image.length} bytes, fresh memory ${fresh.length}.`);
  for (let at = 0; at < fresh.length; at++) image[head + at] ^= fresh[at];
  fs.writeFileSync(inOut("snapshot.wasm"), packed(image, head));
}

/**
 * The snapshot's file: the lengths of image and head, the number of runs, each run's start and length, all as 32-bit
 * integers; then the head; then the runs' bytes. A run is a series of pages that differ from the fresh memory.
 */
function packed(image, head) {
  const PAGE = 4096;
  const runs = [];
  for (let start = head; start < image.length; start += PAGE) {
    const length = Math.min(PAGE, image.length - start);
    if (image.subarray(start, start + length).every((byte) => byte === 0)) continue;
    const last = runs.at(-1);
    if (last && last[0] + last[1] === start) last[1] += length;
    else runs.push([start, length]);
  }
  const index = Uint32Array.from([image.length, head, runs.length, ...runs.flat()]);
  const parts = [index, image.subarray(0, head), ...runs.map(([start, length]) => image.subarray(start, start + length))];
  return Buffer.concat(parts.map((part) => Buffer.from(part.buffer, part.byteOffset, part.byteLength)));
}

function copyIn(python, from, to) {
  python.FS.mkdirTree(to);
  for (const entry of fs.readdirSync(from, { withFileTypes: true })) {
    if (entry.name === "__pycache__") continue;
    const source = path.join(from, entry.name);
    if (entry.isDirectory()) copyIn(python, source, `${to}/${entry.name}`);
    else if (entry.name.endsWith(".py")) python.FS.writeFile(`${to}/${entry.name}`, fs.readFileSync(source));
  }
}
