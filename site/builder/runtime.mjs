// Makes the small Python for the browser: the modules that the calculator really imports, compiled, in stored zips.
//
// node runtime.mjs PYODIDE CALCULATOR ANSWER SETUPS OUT
//   PYODIDE     folder of the npm package
//   CALCULATOR  the package's folder
//   ANSWER      the module that puts an estimate into the page's words
//   SETUPS      JSON list of setups to answer while modules are recorded, refused ones among them
//   OUT         receives stdlib.zip and calculator.zip
//
// Pyodide ships its standard library as source and compiles 145 modules at each start. Here Pyodide itself is started
// once, runs the calculator over every setup, and compiles what it had imported by then. Zips are stored, not
// deflated: the web server's compression does better on them.

import fs from "node:fs";
import path from "node:path";
import { pathToFileURL } from "node:url";

// The message alone: a trace would print Pyodide's one long line of source.
process.on("uncaughtException", (error) => {
  console.error(error.message);
  process.exit(1);
});

const [pyodideFolder, calculatorFolder, answerFile, setupsFile, outFolder] = process.argv.slice(2);
const { loadPyodide } = await import(pathToFileURL(path.join(pyodideFolder, "pyodide.mjs")).href);
const python = await loadPyodide({ indexURL: pyodideFolder + path.sep });

copyIn(calculatorFolder, "/source/calculator");
python.FS.writeFile("/source/answer.py", fs.readFileSync(answerFile));
python.FS.writeFile("/setups.json", fs.readFileSync(setupsFile));
python.runPython(`
import sys
sys.path.append("/source")
import json
import answer
for setup in json.load(open("/setups.json")):
    answer.answer(json.dumps(setup))
imported = {name: module.__spec__ for name, module in list(sys.modules.items()) if getattr(module, "__spec__", None)}

import importlib.util
import io
import pathlib
import zipfile

def compiled(source, shown_as, optimize):
    """Bytes of a .pyc that is never checked against its source."""
    import marshal
    code = compile(source, shown_as, "exec", dont_inherit=True, optimize=optimize)
    return importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little") + bytes(8) + marshal.dumps(code)

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
        stdlib[name + "c"] = compiled(archive.read(name), origin, 2)
program = {
    str(file.relative_to("/source").with_suffix(".pyc")): compiled(file.read_bytes(), str(file), 0)
    for file in pathlib.Path("/source").rglob("*.py")
}
pathlib.Path("/stdlib.zip").write_bytes(stored_zip(stdlib))
pathlib.Path("/calculator.zip").write_bytes(stored_zip(program))
print(f"{len(stdlib)} standard modules and {len(program)} of the calculator compiled")
`);
for (const name of ["stdlib.zip", "calculator.zip"]) {
  fs.writeFileSync(path.join(outFolder, name), python.FS.readFile("/" + name));
}

function copyIn(from, to) {
  python.FS.mkdirTree(to);
  for (const entry of fs.readdirSync(from, { withFileTypes: true })) {
    if (entry.name === "__pycache__") continue;
    const source = path.join(from, entry.name);
    if (entry.isDirectory()) copyIn(source, `${to}/${entry.name}`);
    else if (entry.name.endsWith(".py")) python.FS.writeFile(`${to}/${entry.name}`, fs.readFileSync(source));
  }
}
