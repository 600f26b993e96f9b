"""How the demo models were made: corpus -> tokenizer -> train -> export. Never imported by the
package.
"""
